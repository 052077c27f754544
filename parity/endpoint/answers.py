"""What a server answered to one prompt, read from foreign JSON: ids, log-probabilities, its end, its counts."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

from parity import limits
from parity.errors import Inconclusive, UsageError
from parity.imports.arrays import MAGIC, members

STOP, LENGTH = "stop", "length"


@dataclass(frozen=True)
class Completion:
    """One completion.

    Attributes:
        tokens: generated ids.
        finish: `stop` (an end token) or `length` (the budget), or what else the server says.
        prompt: [S] float64, log-probability of each prompt token given those before; NaN where there is none (the first
            has none); None where the server returned none at all.
        experts: ids [rows, layers * X] of the routed experts from the first prompt token on, or None.
        rounds, accepted, drafted: of this request, where its answer counts them: verify rounds, drafts accepted among
            them, drafts made.
    """

    tokens: tuple[int, ...]
    finish: str
    prompt: np.ndarray | None = None
    experts: np.ndarray | None = None
    rounds: int | None = None
    accepted: int | None = None
    drafted: int | None = None


def field(value: Any, *path: str | int) -> Any:
    """What lies at a path in parsed JSON; None where nothing does."""
    for key in path:
        if isinstance(value, dict) and isinstance(key, str):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and -len(value) <= key < len(value):
            value = value[key]
        else:
            return None
    return value


def token_ids(value: Any, what: str) -> tuple[int, ...]:
    """Token ids.

    Raises:
        Inconclusive: there are none, or they are none.
    """
    if not isinstance(value, list):
        raise Inconclusive(f"the server returns no {what}: a text alone does not say which tokens it is made of")
    if len(value) > limits.TOKENS or not all(type(one) is int and 0 <= one < limits.TOKEN for one in value):
        raise Inconclusive(f"the server returns {what} that are no token ids: {str(value)[:80]}")
    return tuple(value)


def logprob(value: Any) -> float:
    """A log-probability; NaN for null.

    Raises:
        Inconclusive: it is no number.
    """
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        raise Inconclusive(f"the server returns {str(value)[:40]!r} as a log-probability")
    if value != value:
        raise Inconclusive("the server returns NaN as a log-probability: its numbers say nothing")
    return float(value)


def count(value: Any) -> int | None:
    """A count, or None where the server gives none.

    Raises:
        Inconclusive: it is none that can be.
    """
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 2**53:
        raise Inconclusive(f"the server counts {str(value)[:40]!r}")
    return value


def told_all(tokens: tuple[int, ...], counted: Any) -> tuple[int, ...]:
    """The tokens, if they are as many as the server says that it generated, an end token that it keeps apart.

    Args:
        counted: how many it says, or None.

    Raises:
        Inconclusive: it says another number: one of the two is not of this answer.
    """
    number = count(counted)
    if number is not None and not len(tokens) <= number <= len(tokens) + 1:
        raise Inconclusive(f"the server says that it generated {number} tokens and returns {len(tokens)}")
    return tokens


def same_prompt(sent: Sequence[int], seen: Any, counted: Any) -> None:
    """Refuse an answer about another prompt than the one that was sent.

    Args:
        seen: the prompt's ids as the server returns them, or None.
        counted: how many tokens it says the prompt has, or None.

    Raises:
        Inconclusive: it read another prompt.
    """
    ids = None if seen is None else token_ids(seen, "prompt ids")
    if ids is not None and ids != tuple(sent):
        at = next((at for at, (one, other) in enumerate(zip(sent, ids, strict=False)) if one != other), len(sent))
        raise Inconclusive(
            f"the server read another prompt than the {len(sent)} ids that were sent: {len(ids)} tokens, others from "
            f"position {min(at, len(ids))} on; does it tokenise anew, or put a token in front?"
        )
    if (length := count(counted)) is not None and length != len(sent):
        raise Inconclusive(
            f"the server read {length} prompt tokens where {len(sent)} ids were sent: does it tokenise anew, or put a "
            "token in front?"
        )


def expert_ids(value: Any) -> np.ndarray | None:
    """Routed experts as servers send them, base64 of an .npy file or of int32: [rows, whatever] or flat; None without.

    Raises:
        Inconclusive: that is neither.
    """
    if value is None:
        return None
    try:
        data = base64.b64decode(value, validate=True)
        if not data.startswith(MAGIC):
            return np.frombuffer(data, "<i4").astype(np.int64)
        array = members(BytesIO(data), "routed experts")[""]()
    except (TypeError, ValueError, KeyError, UsageError):
        raise Inconclusive("the server returns routed experts that cannot be read") from None
    if array.dtype.kind not in "iu" or array.size > limits.TOKENS:
        raise Inconclusive(f"the server returns routed experts as {array.dtype}")
    return np.asarray(array, np.int64)
