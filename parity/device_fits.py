"""Whether a device, as it describes itself, can be run over a golden."""

from __future__ import annotations

from typing import Literal, cast, get_args

from parity.errors import UsageError
from parity.families import BLOCK, TAPS, family_of
from parity.golden.views import DumpView
from parity.seam import Description

Precision = Literal["float32", "bfloat16"]


def precision_of(says: Description) -> Precision:
    """The precision that a device describes.

    Raises:
        UsageError: it is none that a run can be in.
    """
    for precision in get_args(Precision):
        if says.precision == precision:
            return cast(Precision, precision)
    raise UsageError(f"device {says.name} describes its precision as {says.precision!r}; it is float32 or bfloat16")


def refuse_other_shapes(golden: DumpView, says: Description, loop: bool) -> None:
    """Raises:
    UsageError: what a device describes is not what the golden was made with.
    """
    model, case = golden.manifest.model, golden.manifest.case
    for what, device, reference in (
        ("target layers", says.num_layers, model.num_layers),
        ("drafter layers", says.num_drafter_layers, model.num_drafter_layers),
        ("drafts a round (K)", says.k, case.k),
        ("as its partial KV", says.partial_kv or "none", case.partial_kv or "none"),
        ("as the format of its caches", says.kv_cache or "none", case.kv_cache or "none"),
    ):
        if device != reference:
            raise UsageError(f"device {says.name} has {device} {what}, the golden {golden.folder} has {reference}")
    _ends(golden, says)
    if case.schedule and (loop or not says.varies_k):
        said = ", ".join(map(str, case.schedule))
        raise UsageError(
            f"device {says.name} drafts {says.k} tokens in every round (`Description.varies_k`), the golden "
            f"{golden.folder} {said} in turn"
        )
    _samples(golden, says, loop)
    _positions(golden, says)
    _family(golden, says)


def _ends(golden: DumpView, says: Description) -> None:
    """The golden's end tokens end a generation."""
    read = golden.manifest.model.target.constants.get("eos_token_id", ())
    if missing := sorted({*(read if isinstance(read, tuple) else (read,))} - {*says.eos}):
        raise UsageError(
            f"device {says.name} ends no generation at {', '.join(map(str, missing))} (`Description.eos`), the golden "
            f"{golden.folder} does"
        )


def _positions(golden: DumpView, says: Description) -> None:
    """The longest prompt fits with its budget and drafts."""
    case = golden.manifest.case
    longest = max(case.prompts, key=lambda prompt: len(prompt.ids))
    need = len(longest.ids) + case.max_new_tokens + case.k
    if need > says.max_positions:
        raise UsageError(
            f"device {says.name} has {says.max_positions} positions; prompt {longest.id} of the golden {golden.folder} "
            f"needs {need}: {len(longest.ids)} tokens, {case.max_new_tokens} new ones and {case.k} drafts"
        )


def _family(golden: DumpView, says: Description) -> None:
    """The drafter is of the golden's family; one that does not say is of those on taps."""
    model = golden.manifest.model
    has = family_of(model.family).has
    fits = says.family == model.family if says.family else TAPS in has and BLOCK not in has
    if not fits:
        said = f"drafts as {says.family}" if says.family else "does not say its family (`Description.family`)"
        raise UsageError(f"device {says.name} {said}, the golden {golden.folder} is of a {model.family} drafter")


def _samples(golden: DumpView, says: Description, loop: bool) -> None:
    """A golden that samples is for a device that can be given its settings and its random numbers."""
    lacks = {
        "does not sample by given numbers (`Description.samples`)": not says.samples,
        "samples by random numbers of its own (`Description.own_numbers`)": says.own_numbers,
        "runs its loop in one piece, which cannot be given numbers": loop,
    }
    for what, holds in lacks.items():
        if golden.manifest.case.sampling and holds:
            raise UsageError(f"device {says.name} {what}; the golden {golden.folder} samples")


def refuse_missing_stages(golden: DumpView) -> None:
    """Raises:
    UsageError: the golden has not every stage whole, and a local run starts each from the golden's input.
    """
    if golden.keeps:
        raise UsageError(
            f"{golden.folder} keeps some of its tensors as less than whole; a local comparison starts every stage from "
            "the golden's input: run over a whole golden of the same case, and compare the run with this one"
        )
    missing = [name for name in golden.declared if name not in golden.manifest.stages]
    if missing:
        raise UsageError(
            f"{golden.folder} lacks {missing[0]} and {len(missing) - 1} more stages; a local comparison starts every "
            "stage from the golden's input: dump it without --stage"
        )
