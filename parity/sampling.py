"""How a golden says that it samples: settings in words, and the random numbers of a prompt as text."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

import numpy as np

from parity.errors import UsageError
from parity.seam import DRAWS, Rule, Sampling

KINDS = {"temperature": float, "top_k": int, "top_p": float, "min_p": float, "rule": str}
RANGES = {
    "temperature": "0 or a normal number of float32",
    "top_k": "a whole number from 0 on",
    "top_p": "a number above 0, at most 1",
    "min_p": "a number of 0 to 1",
    "rule": " or ".join(get_args(Rule)),
}
EXAMPLE = "temperature=0.7,top_k=20,top_p=0.9,min_p=0.02,rule=residual"


def read_sampling(text: str) -> Sampling:
    """Settings as they are told on a command line: `temperature=0.7,top_k=20`; what is not named is as in `Sampling`.

    Raises:
        UsageError: they are none.
    """
    told = f"sampling {text[:120]!r}"
    parts = [part.strip().partition("=") for part in text.split(",")]
    named: dict[str, Any] = {}
    for name, equals, value in parts:
        if not equals or name not in KINDS:
            raise UsageError(f"{told}: {name!r} is no setting with a value: {', '.join(KINDS)} are, as in {EXAMPLE}")
        if name in named:
            raise UsageError(f"{told}: {name} is there twice")
        named[name] = _setting(told, name, value)
    try:
        return Sampling(**named)
    except ValueError:
        raise UsageError(f"{told}: {_outside(named)}") from None


def _setting(told: str, name: str, value: str) -> Any:
    try:
        return KINDS[name](value if value.isascii() else "")
    except ValueError:
        raise UsageError(f"{told}: {name} is {RANGES[name]}, not {value!r}") from None


def _outside(named: Mapping[str, Any]) -> str:
    """The first setting that is not within its range when it is alone."""
    for name, value in named.items():
        try:
            Sampling(**{name: value})
        except ValueError:
            return f"{name} is {RANGES[name]}, not {value!r}"
    return f"{', '.join(named)} do not go together"


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
