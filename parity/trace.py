"""Taps that parity hands to a device or a reference: one that records, one that forces as well."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, MutableMapping, Sequence
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from parity.errors import UsageError
from parity.sketch import Sketched, joined, projection
from parity.stages import (
    ACCEPT_EMITTED,
    ACCEPT_LENGTH,
    DRAFT_TOKENS,
    TABLE,
    TARGET_TOKENS,
    VERIFY_TOKENS,
    Named,
    dataflow,
)

if TYPE_CHECKING:
    from parity.golden.keeping import Keeping
    from parity.grid import Grid

Tensors = dict[tuple[int, str], NDArray[Any]]
"""(round, full stage name) to the stage's tensor, logical rows only."""

Recorded = MutableMapping[tuple[int, str], NDArray[Any]]
"""The same, in memory or on disk."""


class Trace:
    """Records one prompt's stage tensors; the value passes through unchanged.

    Args:
        declared: the stages of this pair of models.
        keep: which of them to keep in memory; all by default.
        keeping: what is kept of each; all of it where None.

    Attributes:
        tensors: whole tensors.
        earlier: places of those that an earlier, interrupted run of the same recorded.
        sketches: those that the device made itself.
        shards: of a tensor-parallel device, how the ranks' tensors of a place merge, and each rank's.
    """

    def __init__(
        self,
        declared: Mapping[str, Named],
        keep: Callable[[str], bool] = lambda name: True,
        keeping: Keeping | None = None,
    ):
        self.declared, self.keep, self.keeping = declared, keep, keeping
        self.round = 0
        self.tensors: Recorded = {}
        self.sketches: dict[tuple[int, str], Sketched] = {}
        self.shards: dict[tuple[int, str], tuple[str, list[NDArray[Any]]]] = {}
        self.earlier: frozenset[tuple[int, str]] = frozenset()
        self.passed: dict[str, list[NDArray[Any]]] = {}
        self.seen: set[str] = set()

    def begin(self, round_: int) -> None:
        """Everything handed over from now on belongs to this round."""
        self.round = round_
        self.passed, self.seen = {}, set()

    def __call__(self, stage: str, value: NDArray[Any]) -> NDArray[Any]:
        """Record a copy, so that a later change in place is not mistaken for the stage's value.

        Raises:
            UsageError: the stage is not in the table, has another rank, or came twice in this round.
        """
        self._admit(stage, value.shape)
        if self.keep(stage):
            self.tensors[self.round, stage] = np.array(value, order="C")
        return value

    def recorded(self, prefix: str) -> dict[str, NDArray[Any]]:
        """What of the round an earlier, interrupted run recorded, by stage.

        Args:
            prefix: with which the names of the stages begin.
        """
        if not self.earlier:
            return {}
        names = [name for name in self.declared if name.startswith(prefix) and (self.round, name) in self.earlier]
        return {name: self.tensors[self.round, name] for name in names}

    def _admit(self, stage: str, shape: tuple[int, ...]) -> None:
        named = self.declared.get(stage)
        if named is None:
            raise UsageError(f"a tensor was handed over as {stage!r}, which is no declared stage")
        if len(shape) != len(named.stage.axes):
            axes = ",".join(named.stage.axes)
            raise UsageError(f"{stage} came with shape {shape}; its axes are [{axes}]")
        if stage in self.seen:
            raise UsageError(
                f"{stage} came twice in round {self.round}: a stage of several passes comes joined, or pass by pass "
                "through the tap's method `rows` (parity.seam.RowTap)"
            )
        self.seen.add(stage)

    def projection(self, stage: str, width: int) -> NDArray[np.float32] | None:
        """The table of a stage that is kept as a sketch; see `parity.seam.SketchTap`."""
        whole = self.keeping is None or stage not in self.declared or self.declared[stage].stage.cache
        form = None if whole or self.keeping is None else self.keeping.form(stage, (1, width))
        return projection(form.seed, form.sketch, width) if form and form.sketch and not form.top else None

    def sketch(
        self, stage: str, products: NDArray[Any], squares: NDArray[Any], shape: tuple[int, ...], dtype: str
    ) -> NDArray[Any] | None:
        """Record a sketch; see `parity.seam.SketchTap`.

        Raises:
            UsageError: it is of another size than the table's, or as for a tensor.
        """
        table = self.projection(stage, prod(shape[1:]))
        if table is None or products.shape != (shape[0], table.shape[1]) or squares.shape != (shape[0],):
            raise UsageError(f"{stage} came as a sketch of shape {products.shape} for a tensor of shape {shape}")
        self._admit(stage, shape)
        if self.keep(stage):
            self.sketches[self.round, stage] = Sketched(joined(products, squares), shape, dtype)
        return None

    def rows(self, stage: str, value: NDArray[Any], first: int, total: int) -> NDArray[Any]:
        """Record a stage once all its rows are there; see `parity.seam.RowTap`.

        Raises:
            UsageError: rows are missing, surplus or come twice.
        """
        passed = [*(self.passed.get(stage, ()) if first else ()), np.array(value)]
        end = sum(len(rows) for rows in passed)
        if end != first + len(value) or end > total:
            raise UsageError(f"{stage}: rows {first} to {end - 1} of {total} came out of turn in round {self.round}")
        self.passed[stage] = passed
        if end == total:
            Trace.__call__(self, stage, np.concatenate(self.passed.pop(stage)))
        return value

    def ranks(self, stage: str, shards: Sequence[NDArray[Any]], sharding: str) -> Sequence[NDArray[Any]]:
        """Record each rank's tensor and what they merge to; see `parity.seam.RankTap`."""
        from parity.golden.ranks import merge_shards, split

        axes = self.declared[stage].stage.axes if stage in self.declared else ()
        whole = merge_shards(stage, shards, sharding, axes)
        taken = self(stage, whole)
        if (self.round, stage) in self.tensors:
            self.shards[self.round, stage] = sharding, [np.array(shard, order="C") for shard in shards]
        return shards if taken is whole else split(stage, taken, len(shards), sharding, axes)


class ForcingTrace(Trace):
    """Records, then returns the golden's tensor instead, in the argument's dtype.

    Where a choice cannot be forced and differs from the golden's, the sequence parts from it: nothing behind that is
    recorded.

    Args:
        golden: the float32 golden of the same prompt, full cache contents.
        forced: full names of the stages that are replaced.
        grids: of stages whose ties are settled the golden's way; see `parity.grid`.

    Attributes:
        parted: the round and the stage of that choice.
        idle: whether its prompt runs freely meanwhile, of which nothing is recorded.
    """

    def __init__(
        self,
        declared: Mapping[str, Named],
        golden: Callable[[int, str], NDArray[Any] | None],
        forced: Container[str],
        keep: Callable[[str], bool] = lambda name: True,
        grids: Mapping[str, Grid] | None = None,
        keeping: Keeping | None = None,
    ):
        super().__init__(declared, keep, keeping)
        self.golden, self.forced, self.grids = golden, forced, grids or {}
        self.parted: tuple[int, str] | None = None
        self.idle = False

    def __call__(self, stage: str, value: NDArray[Any]) -> NDArray[Any]:
        if self.parted:
            return value
        super().__call__(stage, value)
        return self._forced(stage, value, 0, len(value))

    def rows(self, stage: str, value: NDArray[Any], first: int, total: int) -> NDArray[Any]:
        """Record as `Trace.rows`, then return the golden's rows of this pass."""
        if self.parted:
            return value
        super().rows(stage, value, first, total)
        return self._forced(stage, value, first, total)

    def sketch(
        self, stage: str, products: NDArray[Any], squares: NDArray[Any], shape: tuple[int, ...], dtype: str
    ) -> NDArray[Any] | None:
        """Record a sketch as `Trace.sketch`, then return the golden's tensor where the stage is forced."""
        if self.parted:
            return None
        super().sketch(stage, products, squares, shape, dtype)
        true = self._due(stage, shape[0]) if stage in self.forced else None
        return true if true is not None and true.shape == shape else None

    def returned(self, stage: str, value: Iterable[SupportsIndex]) -> NDArray[Any]:
        """Take the integers that a verb returned as a stage; those to continue with.

        The first token and what a round emits cannot be forced in this way: a device uses them already. Where
        the stage was handed over as well, and something else was returned, what was returned is recorded.
        """
        tokens = np.array([index(each) for each in value], dtype=np.int64)
        if stage in self.seen and not self.parted:
            return self._agreed(stage, tokens)
        if stage in (TARGET_TOKENS, ACCEPT_LENGTH, ACCEPT_EMITTED):
            self.told(stage, tokens)
        elif not self.parted and stage in self.declared:
            super().__call__(stage, tokens)
            return self._replaced(stage, tokens, 0, len(tokens))
        return tokens

    def as_many(self, stage: str, own: NDArray[Any]) -> NDArray[Any]:
        """The golden's integers for another number of them, which is a finding: the round goes on as the golden's."""
        true = self.golden(self.round, stage) if stage in self.forced and not self.parted else None
        return own if true is None or len(true) == len(own) else true.astype(np.int64)

    def told(self, stage: str, value: Iterable[SupportsIndex]) -> None:
        """Take the integers that a round chose and that were not handed over in it: it is over, they are not forced.

        What was recorded behind a choice of another token is of another sequence, and is dropped.
        """
        tokens = np.array([index(each) for each in value], dtype=np.int64)
        if stage in self.seen and not self.parted:
            self._agreed(stage, tokens)
        if self.parted or stage in self.seen or stage not in self.declared:
            return
        super().__call__(stage, tokens)
        self._part(stage, tokens)

    def drop(self, behind: str = "") -> None:
        """Forget what was recorded in this round: all of it, or what comes behind a stage in the flow of data."""
        order = [named.name for named in dataflow(self.declared.values(), self.round)]
        for name in order[order.index(behind) + 1 :] if behind else order:
            self.tensors.pop((self.round, name), None)
            self.sketches.pop((self.round, name), None)
            self.shards.pop((self.round, name), None)

    def _agreed(self, stage: str, tokens: NDArray[Any]) -> NDArray[Any]:
        """What a verb returned of a stage that was handed over: the same, or what was handed back for it.

        Anything else takes its place in the record, and is judged; the run continues with what was handed back.
        """
        recorded = self.tensors.get((self.round, stage))
        due = self._due(stage, len(tokens)) if stage in self.forced else None
        own = None if recorded is None else recorded[-1:] if stage == TARGET_TOKENS else recorded
        if recorded is None or any(side is not None and np.array_equal(side, tokens) for side in (due, own)):
            return tokens
        if stage == TARGET_TOKENS and len(tokens) == 1:
            tokens = np.concatenate([recorded[:-1], tokens])
        self.tensors[self.round, stage] = tokens
        return tokens if due is None else due.astype(np.int64)

    def _forced(self, stage: str, value: NDArray[Any], first: int, total: int) -> NDArray[Any]:
        if stage in self.grids:
            return self._settled(stage, value, first, total)
        if stage not in self.forced:
            return self._part(stage, value)
        return self._replaced(stage, value, first, total)

    def _settled(self, stage: str, value: NDArray[Any], first: int, total: int) -> NDArray[Any]:
        """What it continues with, with the golden's side of ties; in bfloat16, where it is forced, its floor's side."""
        own = self._replaced(stage, value, first, total) if stage in self.forced else value
        true = self._due(stage, total)
        if true is None or true.shape != (total, *value.shape[1:]):
            return own
        if value.dtype != np.float32:
            return self.grids[stage].pinned(own) if stage in self.forced else own
        return self.grids[stage].settled(own, true[first : first + len(value)])

    def _replaced(self, stage: str, value: NDArray[Any], first: int, total: int) -> NDArray[Any]:
        true = self._due(stage, total)
        if true is None or true.shape != (total, *value.shape[1:]):
            return value  # a structural difference: the comparison reports it, the run continues
        return true[first : first + len(value)].astype(value.dtype)

    def _due(self, stage: str, total: int) -> NDArray[Any] | None:
        """The golden's tensor, or its last row where one of several is shown."""
        true = self.golden(self.round, stage)
        return true[-1:] if true is not None and total == 1 and len(true) > 1 else true

    def _part(self, stage: str, value: NDArray[Any]) -> NDArray[Any]:
        """Notice a choice of another token, behind which nothing is the golden's sequence.

        Of accepted tokens it is the target's, where that was its own and is another one.
        """
        if stage in PARTING and self._differs(stage, value):
            own = None if VERIFY_TOKENS in self.forced else self.tensors.get((self.round, VERIFY_TOKENS))
            chosen = stage in ACCEPTED and own is not None and self._differs(VERIFY_TOKENS, own)
            self.parted = self.round, VERIFY_TOKENS if chosen else stage
            self.drop(self.parted[1])
        return value

    def _differs(self, stage: str, value: NDArray[Any]) -> bool:
        """Whether choices are not the golden's; of the prefill, the last row's."""
        true = self._due(stage, len(value))
        rows = slice(-1, None) if stage == TARGET_TOKENS else slice(None)
        return true is not None and not np.array_equal(value[rows], true[rows])


ACCEPTED = (ACCEPT_LENGTH, ACCEPT_EMITTED)
PARTING = (TARGET_TOKENS, DRAFT_TOKENS, *ACCEPTED)
"""Choices that decide which tokens follow."""


def forced_templates(mode: str) -> tuple[str, ...]:
    """Templates of the stages that a comparison forces.

    Chained: the choices only (tokens, experts, accepted counts), so that numeric errors travel downstream
    but a rounding that tips a choice does not hide everything behind it. Local: every stage.
    """
    return tuple(stage.template for stage in TABLE if stage.forced or mode == "local")


def forced_names(mode: str, declared: Mapping[str, Named]) -> frozenset[str]:
    """Full names of the stages that a comparison forces in a pair of models; see `forced_templates`."""
    templates = forced_templates(mode)
    return frozenset(name for name, named in declared.items() if named.stage.template in templates)
