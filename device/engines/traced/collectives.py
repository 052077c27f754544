"""Collectives of a traced program: how they get into it through NKIPy, and what its HLO holds of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from parity.device.kernels.collectives import Groups
from parity.errors import UsageError

OPCODES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
"""What NKIPy's collectives become in the HLO."""


@dataclass(frozen=True)
class Collective:
    """One collective instruction.

    Attributes:
        opcode: one of `OPCODES`.
        groups: its replica groups; a gather's order is theirs.
    """

    opcode: str
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Traced:
    """How a number of ranks meet under NKIPy's trace: by its own collectives."""

    ranks: int

    def all_reduce(self, x: Any, groups: Groups) -> Any:
        """See `parity.device.kernels.collectives`."""
        return _nkipys().all_reduce(x, replica_groups=self._listed(groups))

    def all_gather(self, x: Any, axis: int, groups: Groups) -> Any:
        """See `parity.device.kernels.collectives`."""
        # NKIPy writes the axis into the HLO as it is given, where it must not count from the end.
        return _nkipys().all_gather(x, all_gather_dim=axis % len(x.shape), replica_groups=self._listed(groups))

    def _listed(self, groups: Groups) -> list[list[int]]:
        return [list(group) for group in groups or (range(self.ranks),)]


def of(module: Any) -> list[Collective]:
    """The collectives of an HLO module, in order.

    Args:
        module: its `HloModuleProto`.
    """
    instructions = (one for computation in module.computations for one in computation.instructions)
    return [
        Collective(one.opcode, tuple(tuple(group.replica_ids) for group in one.replica_groups))
        for one in instructions
        if one.opcode in OPCODES
    ]


def check(found: Iterable[Collective], ranks: int) -> None:
    """Refuse collectives at which some rank would wait for ever, or for the wrong number of others.

    Raises:
        UsageError: groups that do not hold every rank exactly once, or are not of one size.
    """
    for one in found:
        members = sorted(rank for group in one.groups for rank in group)
        if members != list(range(ranks)) or len({len(group) for group in one.groups}) > 1:
            raise UsageError(f"{one.opcode} over {shown(one)}: not every one of {ranks} ranks once, in equal groups.")


def told(found: Iterable[Collective]) -> str:
    """How many there are of each kind, in words: `24 all-reduce, 2 all-gather over [[0, 1]]`."""
    counts = Counter(found)
    parts: dict[str, list[str]] = {}
    for one in sorted(counts, key=lambda one: (one.groups, OPCODES.index(one.opcode))):
        parts.setdefault(shown(one), []).append(f"{counts[one]} {one.opcode}")
    return "; ".join(f"{', '.join(some)} over {groups}" for groups, some in parts.items()) or "none"


def shown(one: Collective) -> str:
    """Its replica groups as lists."""
    return str([list(group) for group in one.groups])


def _nkipys() -> Any:
    return import_module("nkipy.distributed.collectives")
