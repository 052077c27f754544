"""How a golden says that it samples: settings in words, and the random numbers of a prompt as text."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error
from dataclasses import fields

import numpy as np

from parity.errors import UsageError
from parity.seam import DRAWS, Sampling

KINDS = {"temperature": float, "top_k": int, "top_p": float, "min_p": float, "rule": str}
EXAMPLE = "temperature=0.7,top_k=20,top_p=0.9,min_p=0.02,rule=residual"


def read_sampling(text: str) -> Sampling:
    """Settings as they are told on a command line: `temperature=0.7,top_k=20`; what is not named is as in `Sampling`.

    Raises:
        UsageError: they are none.
    """
    due = f"sampling {text[:120]!r}: settings are due, as in {EXAMPLE}"
    parts = [part.strip().partition("=") for part in text.split(",")]
    named = {name: value for name, _, value in parts}
    if len(named) < len(parts) or not named.keys() <= KINDS.keys() or not text.isascii():
        raise UsageError(due)
    try:
        return Sampling(**{name: KINDS[name](value) for name, value in named.items()})
    except ValueError:
        raise UsageError(due) from None


def written(settings: Sampling) -> str:
    """Settings in words, every one of them: what a manifest holds, and `read_sampling` reads."""
    return ",".join(f"{field.name}={getattr(settings, field.name)}" for field in fields(settings))


def as_text(uniforms: np.ndarray) -> str:
    """Random numbers, float32 [R, 4, n], as base64 of their little-endian bytes in C order."""
    return b64encode(np.ascontiguousarray(uniforms, "<f4").tobytes()).decode()


def from_text(text: str, budget: int, k: int) -> np.ndarray:
    """The random numbers of a prompt: float32 [budget, 4, K+1]; a sequence has no more rounds than tokens.

    Raises:
        ValueError: the text holds another count of them, or one outside [0, 1).
    """
    shape = budget, len(DRAWS), k + 1
    try:
        numbers = np.frombuffer(b64decode(text, validate=True), "<f4").astype(np.float32)
    except Error as error:
        raise ValueError(str(error)) from None
    if len(numbers) != np.prod(shape) or not ((numbers >= 0) & (numbers < 1)).all():
        raise ValueError(f"{len(numbers)} numbers, {list(shape)} in [0, 1) are due")
    return numbers.reshape(shape)
