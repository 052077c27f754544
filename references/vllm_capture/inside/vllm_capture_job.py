"""Runs inside vLLM's own environment: generate from a job's prompts and record every step.

    python vllm_capture_job.py JOB.json

The job is what `parity.references.vllm_capture.dump` wrote; beside the steps, `result.json` says what came out. Nothing
of this project is imported here.
"""

import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run vLLM over the prompts; the ids that each emitted, and what ran it."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the recorder's hooks are in this process
    import vllm
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform

    longest = max(len(ids) for ids in job["prompts"])
    # Chunked prefill would feed the last token of a chunk as the "next" one: every prompt fits in one step.
    rows = job["batch"] * (longest + job["k"])
    llm = LLM(
        model=job["target"],
        dtype=job["precision"],
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=longest + job["max_new_tokens"] + 2 * job["k"] + 2,  # it drafts once more behind the end
        max_num_seqs=job["batch"],
        max_num_batched_tokens=max(rows, 2 * job["batch"] * (job["k"] + 1)),
        enable_prefix_caching=False,
        async_scheduling=False,
        disable_hybrid_kv_cache_manager=True,
        seed=0,
        worker_extension_cls="vllm_capture_recorder.Recorder",
        speculative_config={
            "method": "eagle3",
            "model": job["drafter"],
            "num_speculative_tokens": job["k"],
            "parallel_drafting": job["parallel"],
        },
    )
    llm.collective_rpc("start_recording", args=(job["out"], job.get("forced")))
    outputs = llm.generate(
        [{"prompt_token_ids": ids} for ids in job["prompts"]],
        SamplingParams(temperature=0.0, max_tokens=job["max_new_tokens"], stop_token_ids=job["eos"], detokenize=False),
        use_tqdm=False,
    )
    return {
        "requests": [output.request_id for output in outputs],
        "emitted": [list(output.outputs[0].token_ids) for output in outputs],
        "versions": {
            "vllm": vllm.__version__,
            **{name: version(name) for name in ("torch", "transformers", "numpy", "safetensors")},
            "python": platform.python_version(),
        },
        "platform": f"{platform.system()} {platform.machine()}, vLLM on {current_platform.device_type}",
    }


def main() -> None:
    """Read the job, run it, write the result beside its steps."""
    job = json.loads(Path(sys.argv[1]).read_text())
    result = run(job)
    (Path(job["out"]) / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
