"""Goldens of the tiny pair for benchmarks whose figure depends on how many rows a condition is told from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from parity.bundled import tiny
from parity.fault_choice import PROMPTS, small_golden
from parity.golden.trust import trusted
from parity.golden.views import TrustedGolden
from parity.producers import dump_golden

MOST = 24
"""New tokens of each prompt of a golden of more than two."""


def chat_lines() -> dict[str, str]:
    """The tiny pair's chat prompts, lines of JSON by id."""
    return {json.loads(line)["id"]: line for line in tiny("prompts/chat.jsonl").read_text().splitlines()}


def golden_of(lines: Sequence[str], tokens: int, folder: Path) -> TrustedGolden:
    """A golden of these prompts, in this folder."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("\n".join(lines) + "\n")
    made = dump_golden(
        target=tiny("target"), drafter=tiny("drafter"), prompts=prompts, max_new_tokens=tokens, out=folder / "golden"
    )
    return trusted(made)


def wide_golden(folder: Path, count: int) -> TrustedGolden:
    """The two prompts of `small_golden` and others, evenly spaced, so many in all; the small one itself for two."""
    if count == 2:
        return small_golden(folder)
    lines = chat_lines()
    first = PROMPTS["p-eagle"]
    others = [name for name in lines if name not in first]
    further = others[:: max(1, len(others) // (count - 2))][: count - 2]
    return golden_of([lines[name] for name in (*first, *further)], MOST, folder)
