"""Goldens made of one golden: another producer's name, tensors changed, prompts or stages left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from parity.golden.case import PromptCase
from parity.golden.store import Dump
from parity.golden.writer import DumpWriter

STAGES = (
    "target.embed",
    "target.layers.0.out",
    "target.tokens",
    "verify.tokens",
    "drafter.taps",
    "drafter.input_ids",
    "drafter.fc_out",
    "drafter.logits",
    "drafter.draft_tokens",
    "accept.length",
    "accept.emitted",
)
"""Enough for every side, and for every choice that the rounds hang on."""

Change = Callable[[int, int, str, np.ndarray], np.ndarray | None]


def rounded(array: np.ndarray, name: str) -> np.ndarray:
    """As another implementation would have it: some last bits otherwise."""
    if array.dtype != np.float32:
        return array
    noise = np.random.default_rng(len(name)).choice([0.0, 2.0**-23], size=array.shape)
    return (array * (1 + noise)).astype(np.float32)


@pytest.fixture
def witness(shallow_golden, tmp_path):
    """A golden of some producer over the small case: `change(prompt, round, stage, array)`, None to leave it out."""

    def make(
        name: str,
        change: Change = lambda prompt, round_, stage, array: array,
        modules: Sequence[str] | None = None,
        prompts: Sequence[int] = (0, 1),
        stages: Sequence[str] = STAGES,
        second_rank: Change | None = None,
        rounds: int = 1000,
        first: int = 0,
    ) -> Path:
        true = shallow_golden.manifest
        with DumpWriter(tmp_path / name) as writer:
            for number, prompt in enumerate(prompts):
                tensors = {}
                for variant, place, round_, stage in shallow_golden.rows:
                    if (variant, place) == ("float32", prompt) and stage in stages and round_ < rounds:
                        array = rounded(shallow_golden.contents(variant, place, round_, stage), name)
                        array = change(prompt, round_, stage, array)
                        tensors |= {} if array is None else {(round_, stage): array}
                writer.add(number, "float32", shallow_golden.declared.values(), tensors)
                if second_rank:
                    again = {
                        (round_, stage): second_rank(prompt, round_, stage, array)
                        for (round_, stage), array in tensors.items()
                    }
                    writer.add(number, "float32", shallow_golden.declared.values(), again, rank=1)
            writer.finish(
                kind="golden",
                stages=[stage for stage in true.stages if stage in stages],
                created=true.created,
                producer=true.producer.model_copy(
                    update={
                        "name": name,
                        "modules": (f"{name}.model",) if modules is None else tuple(modules),
                        "sources": {},
                        "source_digest": name,
                        "versions": {},
                    }
                ),
                model=true.model,
                case=true.case.model_copy(
                    update={"prompts": tuple(ended(true.case.prompts[prompt], rounds, first) for prompt in prompts)}
                ),
            )
        return Dump(tmp_path / name).folder

    return make


def ended(prompt: PromptCase, rounds: int, first: int) -> PromptCase:
    """A prompt whose generation ended after so many rounds, prefill included; its first token is so much more."""
    emitted = prompt.generation.emitted
    kept = prompt.generation.acceptance_length[: rounds - 1]
    generation = prompt.generation.model_copy(
        update={
            "acceptance_length": kept,
            "accepted_drafts": prompt.generation.accepted_drafts[: rounds - 1],
            "emitted": (emitted[0] + first, *emitted[1 : 1 + sum(kept)]),
            "finish": prompt.generation.finish if kept == prompt.generation.acceptance_length else "eos",
        }
    )
    return prompt.model_copy(update={"generation": generation})


def wrong(stage: str, prompt: int | None = None) -> Change:
    """A bug of 10 % in one stage, at all prompts or at one."""

    def change(number, round_, name, array):
        return array * np.float32(1.1) if name == stage and prompt in (None, number) else array

    return change
