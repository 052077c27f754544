"""Whether a golden's tensors agree with its manifest: sizes of its stages, and the tokens that they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from parity.errors import UsageError
from parity.golden.consistent import TRUTH
from parity.golden.manifest import TensorRow
from parity.golden.prompt_rounds import PromptRounds
from parity.stages import Named

if TYPE_CHECKING:
    from parity.golden.views import DumpView

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

ReadTensor = Callable[[int, str], "NDArray[Any] | None"]
"""The tensor of a round and stage, if it is there."""


def refuse_untold(golden: DumpView) -> None:
    """Raises:
    UsageError: a tensor contradicts the manifest; which.
    """
    rows: dict[int, list[tuple[int, str, TensorRow]]] = {}
    for (variant, number, round_, stage), row in golden.rows.items():
        if variant == TRUTH:
            rows.setdefault(number, []).append((round_, stage, row))
    for number, prompt in enumerate(golden.manifest.case.prompts):
        if prompt.generation is not None:
            rounds = PromptRounds.of(prompt, prompt.generation, golden.manifest)
            if rounds.family.fewer:
                rounds = replace(rounds, drafts=_counted(rows.get(number, ())))
            sizes = _sizes(rounds, rows.get(number, ()), golden.declared)
            tokens = _tokens(rounds, _reader(golden, number))
            drafted = _drafted(rounds, _reader(golden, number))
            drafts = _named_drafts(rounds, rows.get(number, ()), _reader(golden, number))
            for wrong in chain(sizes, tokens, drafted, drafts):  # in this order: tokens of a wrong size cannot be read
                raise UsageError(f"{golden.folder} contradicts itself: prompt {number} ({prompt.id}): {wrong}")


def _counted(rows: Iterable[tuple[int, str, TensorRow]]) -> dict[int, int]:
    """How many drafts each round has; more than K are none that may be."""
    return {round_: row.full_shape[0] for round_, stage, row in rows if stage == "drafter.draft_tokens"}


def _sizes(rounds: PromptRounds, rows: Iterable[tuple[int, str, TensorRow]], names: dict[str, Named]) -> Iterator[str]:
    for round_, stage, row in rows:
        due, size = rounds.due(round_, names[stage]) if stage in names else None, row.full_shape[0]
        if stage in IDS and (len(row.full_shape) != 1 or not row.dtype.startswith(("int", "uint"))):
            kind = f"{row.dtype} of shape {list(row.full_shape)}"
            yield f"{stage} of round {round_} is {kind}, integers in one axis are due"
        due = min(due, rounds.k(round_)) if due is not None and stage == "drafter.draft_tokens" else due
        if due is not None and size != due:
            yield f"{stage} of round {round_} has {size} rows, {due} are due"


def _tokens(rounds: PromptRounds, read: ReadTensor) -> Iterator[str]:
    """What the exact stages hold, as far as they are there."""
    for round_, fresh in enumerate(rounds.fresh):
        expected: dict[str, Sequence[int]] = {
            "kv.target.length": [rounds.lengths[round_]],
            "drafter.input_ids": rounds.committed(round_),
        }
        if round_ == 0:
            expected |= {"target.tokens": fresh}
        else:
            expected |= {"accept.length": [len(fresh)], "accept.emitted": fresh}
        for stage, due in expected.items():
            value = read(round_, stage)
            if value is not None and _part(stage, round_, value, len(due)) != list(due):
                yield f"{stage} of round {round_} is not what the manifest says of it: {_few(value)} for {_few(due)}"
        yield from _accepted(rounds, round_, read) if round_ else ()


def _part(stage: str, round_: int, value: NDArray[Any], count: int) -> list[int]:
    """The rows that the manifest speaks of: the last token of the prefill, the committed rows of a draft."""
    values: list[int] = value.tolist()
    if stage == "target.tokens":
        return values[-1:]
    return values[:count] if stage == "drafter.input_ids" and round_ else values


def _accepted(rounds: PromptRounds, round_: int, read: ReadTensor) -> Iterator[str]:
    """The drafts of a round are the target's own tokens as far as they were accepted, and what came out is those."""
    fresh, tokens, drafts = rounds.fresh[round_], read(round_, "verify.tokens"), read(round_, "drafter.draft_tokens")
    if tokens is not None and tuple(tokens.tolist()[: len(fresh)]) != fresh:
        yield f"round {round_} emits {_few(fresh)}, verify.tokens are {_few(tokens)}"
    if tokens is not None and drafts is not None:
        matched = int((drafts == tokens[: len(drafts)]).cumprod().sum())
        if min(matched, len(fresh)) != rounds.accepted[round_]:
            yield f"round {round_} accepts {rounds.accepted[round_]} drafts, of which {matched} are the target's tokens"


def _drafted(rounds: PromptRounds, read: ReadTensor) -> Iterator[str]:
    """Rows behind the committed ones carry the draft before each, or one placeholder, as the family has it."""
    for round_ in range(1, len(rounds.fresh)):
        ids, drafts = read(round_, "drafter.input_ids"), read(round_, "drafter.draft_tokens")
        if ids is None or drafts is None:
            continue
        behind = ids[len(rounds.committed(round_)) :]
        due = drafts[: len(behind)] if rounds.family.chain else behind[:1].repeat(len(behind))
        if behind.tolist() != due.tolist():
            yield f"rows of round {round_} carry {_few(behind)}; of {rounds.family.name} {_few(due)} are due"


def _named_drafts(rounds: PromptRounds, rows: Iterable[tuple[int, str, TensorRow]], read: ReadTensor) -> Iterator[str]:
    """The manifest names a token for each column of the draft logits, and no other token is drafted."""
    for round_, stage, row in rows if rounds.vocabulary else ():
        if stage == "drafter.logits" and row.full_shape[-1] != len(rounds.vocabulary):
            named = len(rounds.vocabulary)
            yield f"{stage} of round {round_} has {row.full_shape[-1]} columns, {named} draft tokens are named"
        drafts = read(round_, stage) if stage == "drafter.draft_tokens" else None
        if drafts is not None and not rounds.vocabulary.issuperset(drafts.tolist()):
            yield f"{_few(drafts)} of round {round_} are not all of the draft vocabulary"


def _few(values: Iterable[int]) -> list[int]:
    return [int(value) for value in islice(values, 8)]


def _reader(golden: DumpView, prompt: int) -> ReadTensor:
    return lambda round_, stage: golden.stored(TRUTH, prompt, round_, stage)
