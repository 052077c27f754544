"""A gate's checks of a device, as far as a test asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from parity.gates.context import GateContext
from parity.gates.gate import Check, each_check


class Asked(Mapping[str, Check]):
    """Checks by name, made up to the one that is asked for; to go through them makes them all."""

    def __init__(self, context: GateContext, gate: str):
        self._made: dict[str, Check] = {}
        self._coming = each_check(context, gate)

    def __getitem__(self, name: str) -> Check:
        while name not in self._made and self._more():
            pass
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        yield from [*self._made]
        while self._more():
            yield [*self._made][-1]

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _more(self) -> bool:
        check = next(self._coming, None)
        if check is not None:
            assert check.name not in self._made, check
            self._made[check.name] = check
        return check is not None
