"""Quantised caches: the format in which a side's keys and values are kept, and what a golden says of them.

A key (after RoPE) or a value x is kept as the number of the format nearest to x / scale, of two equally near ones the
even one, at most the largest finite one in size; it is read as that number times the scale, in float32, then in the
dtype of the pass. There is a scale for the keys and one for the values of each layer. Attention reads the cache for
every row, those of the same pass included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parity.errors import UsageError
from parity.families import family_of

FORMATS = ("fp8_e4m3", "fp8_e5m2")
_ONE = "|".join(FORMATS)
FORM = rf"(?:{_ONE}|target=(?:{_ONE})|drafter=(?:{_ONE})|target=(?:{_ONE}),drafter=(?:{_ONE}))"


@dataclass(frozen=True)
class KVFormats:
    """The format of each side's caches; empty for the dtype of the pass. In words `fp8_e4m3`, or `target=fp8_e4m3`."""

    target: str = ""
    drafter: str = ""

    def __str__(self) -> str:
        if self.target == self.drafter:
            return self.target
        sides = {"target": self.target, "drafter": self.drafter}
        return ",".join(f"{side}={kind}" for side, kind in sides.items() if kind)

    @classmethod
    def parse(cls, text: str) -> KVFormats:
        """Read the words; no format on either side for the empty text.

        Raises:
            UsageError: they are none.
        """
        if not text:
            return cls()
        if re.fullmatch(FORM, text, re.ASCII) is None:
            raise UsageError(
                f"--kv-cache {text[:80]!r}: {' or '.join(FORMATS)} is due, for one side as in target={FORMATS[0]}"
            )
        if "=" not in text:
            return cls(text, text)
        return cls(**dict(one.split("=") for one in text.split(",")))

    @classmethod
    def of(cls, text: str, family: str, partial_kv: str = "") -> KVFormats:
        """Read the words for a drafter of this family.

        Raises:
            UsageError: as `parse`; the family has no cache that its rows attend to, or attends to pages of it.
        """
        made = cls.parse(text)
        if made.drafter and not family_of(family).pages:
            raise UsageError(
                f"--kv-cache {text}: a {family} drafter has no rows that attend to a cache of their own; "
                f"name the target's alone, target={made.target or made.drafter}"
            )
        if made.drafter and partial_kv:
            raise UsageError(f"--kv-cache {text}: the drafter's caches are quantised whole, not with partial KV")
        return made


def of_drafter(text: str) -> bool:
    """Whether the words name a format of the drafter's caches; not where they are none."""
    return text in FORMATS or "drafter=" in text


def check_scales(scales: Mapping[Any, Mapping[Any, tuple[float, ...]]], text: str, layers: Mapping[str, int]) -> str:
    """What is wrong with the scales that a golden of these formats records, by side and part; empty where nothing is.

    Args:
        layers: of each side.
    """
    formats = KVFormats.parse(text)
    due = {side for side in ("target", "drafter") if getattr(formats, side)}
    if set(scales) != due:
        return f"kv_scales are of {sorted(scales)}, kv_cache {text!r} asks for {sorted(due)}"
    for side, parts in scales.items():
        if set(parts) != {"k", "v"} or any(len(each) != layers[side] for each in parts.values()):
            return f"kv_scales of the {side} are not one for the k and one for the v of each of {layers[side]} layers"
    return ""
