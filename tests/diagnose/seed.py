"""The case this project began with: four defects in one device, an acceptance of 1.4, not a word of the text wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import AutoTokenizer

from parity import device
from parity.device.faults import CATALOGUE
from parity.device.pipeline import Pipeline

TOGETHER = ("tap-off-by-one", "input-context-blind", "rollback-wrong-axis")


class RawPrompt:
    """A device that feeds its target the user's words without the chat template."""

    def __init__(self, pipeline: Pipeline, target: Path):
        self.pipeline = pipeline
        tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=True, trust_remote_code=False)
        one, other = (
            tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)["input_ids"]
            for text in ("xyz", "7 8")
        )
        self.opening = next(i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
        self.closing = next(i for i, pair in enumerate(zip(one[::-1], other[::-1], strict=False)) if pair[0] != pair[1])

    def __getattr__(self, name: str):
        return getattr(self.pipeline, name)

    def prefill(self, prompt_ids: Sequence[int], max_new_tokens: int, tap) -> int:
        """Prefill the words alone."""
        words = prompt_ids[self.opening : len(prompt_ids) - self.closing]
        return self.pipeline.prefill(words, max_new_tokens, tap)


def four(target: Path, drafter: Path, k: int, precision: str = "bfloat16") -> RawPrompt:
    """Raw prompt, taps one layer late, a drafter blind to its context, rollback on the head axis."""
    pipeline = device.load(target, drafter, k, precision)
    for fault in TOGETHER:
        CATALOGUE[fault].plant(pipeline)
    return RawPrompt(pipeline, target)
