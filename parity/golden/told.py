"""A golden's tensors agree with its manifest: as many rows as its rounds are due, and the tokens that they tell.

A run's tensors are what a device did, and are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from parity.errors import UsageError
from parity.golden.manifest import Generation, PromptCase, TensorRow
from parity.stages import Named

if TYPE_CHECKING:
    from parity.golden.store import Dump

TRUTH = "float32"
IDS = (
    "target.tokens",
    "verify.tokens",
    "drafter.draft_tokens",
    "drafter.input_ids",
    "accept.length",
    "accept.emitted",
    "kv.target.length",
)
"""Stages that are read here, as lists of integers."""

Read = Callable[[int, str], "np.ndarray | None"]
"""The tensor of a round and stage, if it is there."""


def refuse_untold(golden: Dump) -> None:
    """Raises:
    UsageError: a tensor contradicts the manifest; which.
    """
    rows: dict[int, list[tuple[int, str, TensorRow]]] = {}
    for (variant, prompt, round_, stage), row in golden.rows.items():
        if variant == TRUTH:
            rows.setdefault(prompt, []).append((round_, stage, row))
    for number, prompt in enumerate(golden.manifest.case.prompts):
        if prompt.generation is not None:
            rounds = Rounds.of(prompt, prompt.generation, golden.manifest.case.k)
            sizes = _sizes(rounds, rows.get(number, ()), golden.declared)
            for wrong in chain(
                sizes, _tokens(rounds, _reader(golden, number))
            ):  # tokens of a wrong size cannot be read
                raise UsageError(f"{golden.folder} contradicts itself: prompt {number} ({prompt.id}): {wrong}")


@dataclass(frozen=True)
class Rounds:
    """One prompt's rounds: its ids, K, and per round the tokens that came out (round 0: the first one)."""

    ids: tuple[int, ...]
    k: int
    fresh: tuple[tuple[int, ...], ...]
    accepted: tuple[int, ...]
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, prompt: PromptCase, told: Generation, k: int) -> Rounds:
        """The rounds of a prompt that the manifest has."""
        fresh, end = [told.emitted[:1]], 1
        ends = [len(prompt.ids)]
        for length in told.acceptance_length:
            fresh.append(told.emitted[end : end + length])
            ends.append(ends[-1] + length)
            end += length
        return cls(prompt.ids, k, tuple(fresh), (0, *told.accepted_drafts), tuple(ends))

    def due(self, round_: int, named: Named) -> int | None:
        """Rows that a stage has after or in this round, by its first axis; None where nothing says so.

        `lengths[r]` are the target's rows in the cache after round r; the drafter's are those before it.
        """
        first = round_ == 0
        drafted = len(self.ids) - 1 if first else self.lengths[round_ - 1]
        committed = drafted if first else len(self.fresh[round_ - 1])
        if named.stage.cache:
            return self.lengths[round_] if named.name.startswith("kv.target.") else drafted
        sizes = {
            "S": len(self.ids) if first else self.k + 1,
            "C": committed,
            "W": committed if first else committed + self.k - 1,
            "K": self.k,
            "M": len(self.fresh[round_]),
            "1": 1,
        }
        return sizes.get(named.stage.axes[0])


def _sizes(rounds: Rounds, rows: Iterable[tuple[int, str, TensorRow]], declared: dict[str, Named]) -> Iterator[str]:
    for round_, stage, row in rows:
        due, size = rounds.due(round_, declared[stage]) if stage in declared else None, row.full_shape[0]
        if stage in IDS and (len(row.full_shape) != 1 or not row.dtype.startswith(("int", "uint"))):
            yield f"{stage} of round {round_} is {row.dtype} of shape {list(row.full_shape)}, integers in one axis are due"
        if due is not None and size != due:
            yield f"{stage} of round {round_} has {size} rows, {due} are due"


def _tokens(rounds: Rounds, read: Read) -> Iterator[str]:
    """What the exact stages hold, as far as they are there."""
    for round_, fresh in enumerate(rounds.fresh):
        held = {"kv.target.length": [rounds.lengths[round_]]}
        if round_ == 0:
            held |= {"target.tokens": fresh, "drafter.input_ids": rounds.ids[1:]}
        else:
            held |= {
                "accept.length": [len(fresh)],
                "accept.emitted": fresh,
                "drafter.input_ids": rounds.fresh[round_ - 1],
            }
        for stage, due in held.items():
            found = read(round_, stage)
            if found is not None and _part(stage, round_, found, len(due)) != list(due):
                yield f"{stage} of round {round_} is not what the manifest says of it: {_few(found)} for {_few(due)}"
        yield from _accepted(rounds, round_, read) if round_ else ()


def _part(stage: str, round_: int, found: np.ndarray, count: int) -> list[int]:
    """The rows that the manifest speaks of: the last token of the prefill, the committed rows of a draft."""
    values = found.tolist()
    if stage == "target.tokens":
        return values[-1:]
    return values[:count] if stage == "drafter.input_ids" and round_ else values


def _accepted(rounds: Rounds, round_: int, read: Read) -> Iterator[str]:
    """The drafts of a round are the target's own tokens as far as they were accepted, and what came out is those."""
    fresh, tokens, drafts = rounds.fresh[round_], read(round_, "verify.tokens"), read(round_, "drafter.draft_tokens")
    if tokens is not None and tuple(tokens.tolist()[: len(fresh)]) != fresh:
        yield f"round {round_} emits {_few(fresh)}, verify.tokens are {_few(tokens)}"
    if tokens is not None and drafts is not None:
        matched = int((drafts == tokens[: len(drafts)]).cumprod().sum())
        if min(matched, len(fresh)) != rounds.accepted[round_]:
            yield f"round {round_} accepts {rounds.accepted[round_]} drafts, of which {matched} are the target's tokens"


def _few(values) -> list[int]:
    return [int(value) for value in values[:8]]


def _reader(golden: Dump, prompt: int) -> Read:
    return lambda round_, stage: golden.stored(TRUTH, prompt, round_, stage)
