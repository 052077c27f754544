"""Runs in vLLM's environment, where parity is not: generate from a job's prompts and write down what every step shows.

python vllm_inside.py JOB.json
"""

import json
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file


class Watch:
    """Mixed into vLLM's worker: hooks on the target's layers, the drafter's head, and what is sampled and proposed."""

    def watch(self, out: str) -> None:
        runner, self.step, self.seen = self.model_runner, 0, {}
        for number, layer in enumerate(runner.model.model.layers):
            # A layer hands on its branch and the stream apart, and later ones add in place.
            layer.register_forward_hook(lambda module, args, out, n=number: self.keep(f"out.{n}", out[0] + out[1]))
        runner.drafter.model.logits_processor.register_forward_hook(
            lambda module, args, out: self.keep("draft_logits", out)
        )
        sample, propose = runner._sample, runner.propose_draft_token_ids
        drafts = runner.drafter.propose

        def sampled(logits, metadata):
            self.keep("logits", logits)
            chosen = sample(logits, metadata)
            self.keep("sampled", chosen.sampled_token_ids)
            return chosen

        def proposed(*args, **kwargs):
            given = propose(*args, **kwargs)
            self.keep("drafts", given)
            save_file(self.seen, Path(out) / f"{self.step:05d}.safetensors")
            self.step, self.seen = self.step + 1, {}
            return given

        def drafted(*args, **kwargs):
            self.keep("taps", kwargs["target_hidden_states"])
            return drafts(*args, **kwargs)

        runner._sample, runner.propose_draft_token_ids, runner.drafter.propose = sampled, proposed, drafted

    def keep(self, name: str, value: torch.Tensor) -> None:
        self.seen[name] = value.detach().to("cpu", copy=True).contiguous()


def main() -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the hooks are in this process
    from vllm import LLM, SamplingParams, __version__

    job = json.loads(Path(sys.argv[1]).read_text())
    k, longest = job["k"], max(map(len, job["prompts"]))
    llm = LLM(
        model=job["target"],
        dtype=job["precision"],
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=longest + job["max_new_tokens"] + 2 * k + 2,  # it drafts once more behind the end
        max_num_seqs=1,
        max_num_batched_tokens=longest + 2 * k + 2,  # a prompt in one step
        enable_prefix_caching=False,
        async_scheduling=False,
        disable_hybrid_kv_cache_manager=True,
        seed=0,
        worker_extension_cls="vllm_inside.Watch",
        speculative_config={
            "method": "eagle3",
            "model": job["drafter"],
            "num_speculative_tokens": k,
            "parallel_drafting": True,
        },
    )
    sampling = SamplingParams(
        temperature=0.0, max_tokens=job["max_new_tokens"], stop_token_ids=job["eos"], detokenize=False
    )
    llm.collective_rpc("watch", args=(job["out"],))
    emitted = []
    for ids in job["prompts"]:
        (done,) = llm.generate([{"prompt_token_ids": ids}], sampling, use_tqdm=False)
        emitted.append(list(done.outputs[0].token_ids))
    Path(job["out"], "result.json").write_text(json.dumps({"emitted": emitted, "vllm": __version__}))


if __name__ == "__main__":
    main()
