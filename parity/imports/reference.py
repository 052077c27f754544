"""What an imported dump must show before it can stand as a reference: who made it, and what that emitted by itself."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from parity.errors import UsageError
from parity.golden.manifest import Case, Generation
from parity.imports.placing import Place, Placed


def named_version(reference: str) -> tuple[str, str]:
    """Name and version out of `NAME==VERSION`; twice '' where no reference is named.

    Raises:
        UsageError: one of the two is missing.
    """
    name, _, version = reference.partition("==")
    if reference and not (name and version):
        raise UsageError(f"--reference {reference}: say whose oracle it is and which version, as NAME==VERSION")
    return name, version


def refuse_untrue(array: np.ndarray, placed: Placed) -> None:
    """Refuse a tensor that is no reference's truth, before it is widened or stored.

    Raises:
        UsageError: numbers that are narrower than float32, or choices that are no integers.
    """
    said = f"--reference: {placed.captured.source}: {placed.captured.name} is {array.dtype}"
    if placed.named.stage.exact:
        if array.dtype.kind not in "iu":
            raise UsageError(f"{said}; {placed.named.name} are integers")
    elif array.dtype not in (np.float32, np.float64):
        raise UsageError(f"{said}; a golden's truth is float32")


def generation(arrays: Mapping[Place, np.ndarray], prompt: int, case: Case) -> Generation:
    """What the reference emitted for a prompt, out of its own tokens, round by round.

    Raises:
        UsageError: the dump lacks the tokens of a round, or ends where the golden with the same tokens does not.
    """

    def tokens(round_: int, stage: str) -> list[int]:
        if not len(arrays.get((prompt, round_, stage, 0), ())):
            where = f"prompt {prompt}, round {round_}"
            raise UsageError(f"--reference: the dump lacks {stage} of {where}, which says what it emitted")
        return arrays[prompt, round_, stage, 0].tolist()

    emitted, lengths, accepted = [int(tokens(0, "target.tokens")[-1])], [], []
    rounds = max((place[1] for place in arrays if place[0] == prompt), default=0)
    for round_ in range(1, rounds + 1):
        fresh, drafts = tokens(round_, "accept.emitted"), tokens(round_, "drafter.draft_tokens")
        emitted += fresh
        lengths.append(len(fresh))
        accepted.append(int(np.cumprod([mine == theirs for mine, theirs in zip(fresh, drafts, strict=False)]).sum()))
    true = case.prompts[prompt].generation
    if true is not None and len(emitted) < len(true.emitted) and tuple(emitted) == true.emitted[: len(emitted)]:
        said = f"--reference: prompt {prompt} ends after {len(emitted)} tokens"
        raise UsageError(f"{said}, of which the golden emits more: rounds are missing")
    return Generation(
        emitted=tuple(emitted),
        acceptance_length=tuple(lengths),
        accepted_drafts=tuple(accepted),
        finish="length" if len(emitted) >= case.max_new_tokens else "eos",
    )
