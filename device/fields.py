"""Typed reading of a JSON object: every refusal names the file and the field."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from parity.errors import UsageError

REQUIRED: Any = object()


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
        """A whole number of at least `least`."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.refuse(name, f"must be a whole number of at least {least}, not {value!r}")
        return value

    def number(self, name: str, default: Any = REQUIRED) -> float:
        """A positive finite number."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.refuse(name, f"must be a positive number, not {value!r}")
        return float(value)

    def flag(self, name: str, default: Any = REQUIRED) -> bool:
        """True or false."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, f"must be true or false, not {value!r}")
        return value

    def integers(self, name: str, least: int = 0) -> tuple[int, ...]:
        """A whole number or a list of them, each at least `least`; empty where the field is missing or null."""
        value = self.data.get(name)
        many = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(one, bool) or not isinstance(one, int) or one < least for one in many):
            raise self.refuse(name, f"must be whole numbers of at least {least}, not {value!r}")
        return tuple(many)

    def part(self, name: str) -> Fields:
        """The object under this field, empty where it is missing or null."""
        value = self.data.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.refuse(name, f"must be an object, not {value!r}")
        return Fields(self.path, value or {}, f"{self.prefix}{name}.")

    def only(self, name: str, allowed: Any, default: Any = REQUIRED) -> None:
        """Refuse every value but the one this device implements."""
        value = self._value(name, default)
        if value != allowed:
            raise self.refuse(name, f"must be {allowed!r} for this device, not {value!r}")

    def _value(self, name: str, default: Any) -> Any:
        value = self.data.get(name)
        if value is None and default is REQUIRED:
            raise self.refuse(name, "is missing")
        return default if value is None else value
