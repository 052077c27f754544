"""Runs inside vLLM's own environment: one engine, asked over standard input and output, a line of JSON each way.

    python vllm_serving.py JOB.json

A line `{"ids": [...], "budget": n}` is answered by a line `[id, ...]` for each of the engine's steps, then `[]`.
Nothing of this project is imported here.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what vLLM prints is no answer


def engine_of(job: dict[str, Any]) -> Any:
    """vLLM's engine for one sequence at a time; it speculates where the job names drafts."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # no message between processes within a step
    from vllm import LLM

    speculation = {
        "method": "eagle3",
        "model": job["drafter"],
        "num_speculative_tokens": job["k"],
        "parallel_drafting": job["parallel"],
    }
    return LLM(
        model=job["target"],
        dtype=job["precision"],
        skip_tokenizer_init=True,
        enforce_eager=job["eager"],
        max_model_len=job["positions"],
        max_num_seqs=1,
        max_num_batched_tokens=max(job["positions"], 64),  # a prompt in one step
        enable_prefix_caching=False,  # or every prompt but its first run would be free
        async_scheduling=False,
        disable_hybrid_kv_cache_manager=True,
        seed=0,
        **({"speculative_config": speculation} if job["k"] else {}),
    ).llm_engine


def answer(engine: Any, name: str, ids: list[int], budget: int, eos: list[int]) -> Iterator[list[int]]:
    """Decode one prompt; the ids of every step that emitted some, as they come."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    settings = SamplingParams(
        temperature=0.0, max_tokens=budget, stop_token_ids=eos, detokenize=False, output_kind=RequestOutputKind.DELTA
    )
    engine.add_request(name, {"prompt_token_ids": ids}, settings)
    while engine.has_unfinished_requests():
        fresh = [int(token) for output in engine.step() for token in output.outputs[0].token_ids]
        if fresh:
            yield fresh


def main() -> None:
    """Answer until standard input ends."""
    job = json.loads(Path(sys.argv[1]).read_text())
    engine = engine_of(job)
    print([], file=ANSWERS, flush=True)
    for number, line in enumerate(sys.stdin):
        asked = json.loads(line)
        for fresh in answer(engine, str(number), asked["ids"], asked["budget"], job["eos"]):
            print(fresh, file=ANSWERS, flush=True)
        print([], file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()
