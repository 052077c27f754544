"""Where a layer shows its stages: `tap(part, value)` returns the value to continue with."""

from __future__ import annotations

from typing import Any, Protocol


class Tap(Protocol):
    """The tap of a pass; `at` and `of` give that of one of its layers, or of another group of stages."""

    def __call__(self, part: str, value: Any) -> Any:
        """Show `value` of this part; continue with what comes back."""
        ...

    def at(self, layer: int) -> Tap:
        """The tap of this layer."""
        ...

    def of(self, group: str) -> Tap:
        """The tap of this group of stages, for the same rows."""
        ...


class _Untapped:
    def __call__(self, part: str, value: Any) -> Any:
        return value

    def at(self, layer: int) -> Tap:
        return self

    def of(self, group: str) -> Tap:
        return self


untapped: Tap = _Untapped()
"""The tap of a pass that nobody watches."""
