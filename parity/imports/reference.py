"""What an imported dump must show before it can stand as a reference: who made it, and what that emitted by itself."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from parity.errors import UsageError
from parity.golden.manifest import Case, Generation
from parity.imports.placing import Place


def named_version(reference: str) -> tuple[str, str]:
    """Name and version out of `NAME==VERSION`; twice '' where no reference is named.

    Raises:
        UsageError: one of the two is missing.
    """
    name, _, version = reference.partition("==")
    if reference and not (name and version):
        raise UsageError(f"--reference {reference}: say whose oracle it is and which version, as NAME==VERSION")
    return name, version


def generation(arrays: Mapping[Place, np.ndarray], prompt: int, case: Case) -> Generation:
    """What the reference emitted for a prompt, out of its own tokens, round by round.

    Raises:
        UsageError: the dump lacks the tokens of a round.
    """

    def tokens(round_: int, stage: str) -> list[int]:
        if (prompt, round_, stage, 0) not in arrays:
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
    return Generation(
        emitted=tuple(emitted),
        acceptance_length=tuple(lengths),
        accepted_drafts=tuple(accepted),
        finish="length" if len(emitted) >= case.max_new_tokens else "eos",
    )
