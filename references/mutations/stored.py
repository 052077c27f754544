"""Keys and values in a narrower form than they are computed in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from parity.references.mutations import layers_of, together
from parity.references.mutations.attention import attending
from parity.references.mutations.caches import changed_rows

E5M2, E4M3 = torch.float8_e5m2, torch.float8_e4m3fn


def _float8(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    most = torch.finfo(dtype).max  # the cast itself makes NaN of what e4m3 cannot hold
    return lambda x: x.clamp(-most, most).to(dtype).to(x.dtype)


def _int8(x: torch.Tensor) -> torch.Tensor:
    """One scale for each row of each head."""
    step = x.abs().amax(-1, keepdim=True).clamp(1e-12) / 127
    return (x / step).round() * step


FORMS = {
    "float8 e4m3": _float8(E4M3),
    "float8 e5m2": _float8(E5M2),
    "float16": lambda x: x.half().to(x.dtype),
    "bfloat16": lambda x: x.bfloat16().to(x.dtype),
    "int8 per row": _int8,
}


def cached(loop: Any, form: str, side: str, which: str) -> AbstractContextManager:
    """The caches hold `which` (k, v, or both as kv) in this form; a pass still computes with what it made itself."""
    k, v = _each(form, which)
    return changed_rows(loop, "all", side, lambda keys, values: (k(keys), v(values)))


def cached_and_read(loop: Any, form: str, side: str, which: str) -> AbstractContextManager:
    """As `cached`, and every row is read out of the cache, this pass' own among them."""
    k, v = _each(form, which)
    around = lambda attend, q, keys, values, mask: attend(q, k(keys), v(values), mask)  # noqa: E731
    return together([attending(loop, layers_of(loop, side), side, around), cached(loop, form, side, which)])


def _each(form: str, which: str) -> list[Callable[[torch.Tensor], torch.Tensor]]:
    return [FORMS[form] if part in which else lambda x: x for part in "kv"]
