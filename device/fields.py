"""Typed reading of a JSON object: every refusal names the file and the field."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from parity.errors import UsageError

REQUIRED: Any = object()
MOST = 2**27
"""Any size: the longest context of a model has a hundredth of it, the largest matrix axis a thousandth."""
MOST_LAYERS = 1000
"""Each layer is set up before its weights are looked for; the deepest published decoder has 126."""


class Fields:
    """One JSON object of a file.

    Args:
        path: the file, for messages.
        data: its object, or one of its parts.
        prefix: where the part sits in the file, e.g. `rope_parameters.`.
    """

    def __init__(self, path: Path, data: dict[str, Any], prefix: str = "") -> None:
        self.path, self.data, self.prefix = path, data, prefix

    def refuse(self, name: str, why: str) -> UsageError:
        """The error to raise for this field."""
        return UsageError(f"{self.path}: field '{self.prefix}{name}' {why}.")

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.data.get(name) is not None

    def integer(self, name: str, default: Any = REQUIRED, least: int = 1) -> int:
        """A whole number of at least `least`, and no larger than a model has."""
        value, most = self._value(name, default), MOST_LAYERS if name == "num_hidden_layers" else MOST
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.refuse(name, f"must be a whole number of {least} to {most}, not {_short(value)}")
        return value

    def number(self, name: str, default: Any = REQUIRED) -> float:
        """A positive finite number."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.refuse(name, f"must be a positive number, not {_short(value)}")
        return float(value)

    def flag(self, name: str, default: Any = REQUIRED) -> bool:
        """True or false."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, f"must be true or false, not {_short(value)}")
        return value

    def integers(self, name: str, least: int = 0) -> tuple[int, ...]:
        """A whole number or a list of them, each at least `least`; empty where the field is missing or null."""
        value = self.data.get(name)
        many = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(one, bool) or not isinstance(one, int) or not least <= one <= MOST for one in many):
            raise self.refuse(name, f"must be whole numbers of {least} to {MOST}, not {_short(value)}")
        return tuple(many)

    def part(self, name: str) -> Fields:
        """The object under this field, empty where it is missing or null."""
        value = self.data.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.refuse(name, f"must be an object, not {_short(value)}")
        return Fields(self.path, value or {}, f"{self.prefix}{name}.")

    def only(self, name: str, allowed: Any, default: Any = REQUIRED) -> None:
        """Refuse every value but the one this device implements."""
        value = self._value(name, default)
        if value != allowed:
            raise self.refuse(name, f"must be {allowed!r} for this device, not {_short(value)}")

    def _value(self, name: str, default: Any) -> Any:
        value = self.data.get(name)
        if value is None and default is REQUIRED:
            raise self.refuse(name, "is missing")
        return default if value is None else value


def _short(value: Any) -> str:
    """A value in a sentence."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "a number of more than 40 digits"
    return text if len(text) <= 80 else text[:80] + "…"
