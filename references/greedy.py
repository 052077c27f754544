"""The target decoding plainly by Hugging Face's own loop: the baseline of a speed, no oracle of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import torch
from transformers import GptOssForCausalLM
from transformers.utils import logging


def greedy(target: Path, precision: str) -> Callable[[Sequence[int], int], float]:
    """Prompt ids and budget to decoded tokens per second, the prefill left out.

    The first token's time is taken alone: HF's loop has no mark between prefill and decoding.
    """
    logging.disable_progress_bar()
    model = GptOssForCausalLM.from_pretrained(
        target,
        dtype=getattr(torch, precision),
        attn_implementation="eager",
        local_files_only=True,
        trust_remote_code=False,
    ).eval()

    def run(ids: Sequence[int], budget: int) -> float:
        prefill, _ = timed(ids, 1)
        seconds, tokens = timed(ids, budget)
        return (tokens - 1) / max(seconds - prefill, 1e-9)

    @torch.inference_mode()
    def timed(ids: Sequence[int], budget: int) -> tuple[float, int]:
        start = perf_counter()
        found = model.generate(torch.tensor([list(ids)]), max_new_tokens=budget, do_sample=False, pad_token_id=0)
        return perf_counter() - start, found.shape[1] - len(ids)

    return run
