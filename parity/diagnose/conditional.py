"""A hypothesis under a condition: `only(hypothesis, where)`.

In a local comparison every stage starts from the golden's inputs. So what the references say where a hypothesis holds
for some rows alone is those rows with it and the other rows without it: two runs, and the condition that parity's own
search found chooses between their rows. That carries every hypothesis and every condition alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from parity.compare.facts import Facts
from parity.compare.predicate import Predicate
from parity.compare.routed import Routed
from parity.compare.rows import Clock, StageRows
from parity.diagnose.hypothesis import CheckableHypothesis, FitRange, NotComparable
from parity.golden.views import DumpView
from parity.trace import Recorded


@dataclass(frozen=True)
class Conditional:
    """A hypothesis for the rows of a condition; it is what the hypothesis is, beside that."""

    of: CheckableHypothesis
    where: Predicate
    believed: bool
    values: tuple[Any, ...] = ()
    fit: FitRange | None = None
    infer: Callable[[Recorded, Recorded], Any] | None = None
    part: str = ""

    @property
    def id(self) -> str:
        """The hypothesis' id and the condition in words."""
        return f"{self.of.id} only {self.where.says}"

    @property
    def stages(self) -> tuple[str, ...]:
        """Where it can show first."""
        return self.of.stages

    @property
    def cost(self) -> int:
        """The hypothesis' own."""
        return self.of.cost

    @property
    def layered(self) -> bool:
        """The hypothesis' own."""
        return self.of.layered

    @property
    def passes(self) -> str:
        """The hypothesis' own."""
        return self.of.passes

    @property
    def fix(self) -> str:
        """The hypothesis' own, and what is special about it."""
        return f"what is done otherwise under this condition: {self.of.fix}"

    @property
    def seen(self) -> tuple[str, ...]:
        """Where the hypothesis was met."""
        return self.of.seen

    def sized(self, layer: int, number: int, factor: float) -> Any:
        """As the hypothesis'."""
        return self.of.sized(layer, number, factor)

    def describe(self, value: Any) -> str:
        """What is wrong, and where; whether there are enough rows to know that it is there."""
        few = "" if self.believed else " (few rows: it may be another condition)"
        return f"{self.of.describe(value)}; only where: {self.where.says}{few}"


def only(hypothesis: CheckableHypothesis, where: Predicate, believed: bool = True) -> Conditional:
    """The hypothesis for the rows of a condition alone; `believed` where chance would hardly pick such rows."""
    return Conditional(hypothesis, where, believed)


@dataclass
class RowFacts:
    """The facts of the rows of a golden of one prompt, tensor by tensor, as conditions ask for them."""

    golden: DumpView
    _made: dict[tuple[int, str, int], Facts] = field(default_factory=dict)

    def holds(self, where: Predicate, round_: int, stage: str, rows: int) -> np.ndarray:
        """Where a condition holds in a tensor of so many rows: bool [rows]."""
        key = round_, stage, rows
        if key not in self._made:
            self._made[key] = self._of(round_, stage, rows)
        return where.holds(self._made[key])

    def of_rows(self, rows: StageRows) -> Facts:
        """The facts of a stage's rows over all rounds."""
        layer = -1 if rows.named.layer is None else rows.named.layer
        return replace(Facts.of(self.golden, rows), layer=np.full(len(rows.prompt), layer))

    def of_place(self, round_: int, stage: str) -> Facts:
        """The facts of a tensor's first row."""
        return self._of(round_, stage, 1)

    def _of(self, round_: int, stage: str, count: int) -> Facts:
        named = self.golden.declared[stage]
        clock = Clock.of(self.golden.manifest.case.prompts[0], self.golden.manifest)
        first = 0 if named.stage.cache else clock.first(stage, round_, 0)
        held = self._held(round_, stage, count)
        place = np.zeros(count, np.int64)
        rows = StageRows(named, held, held, None, place, place + round_, first + np.arange(count), source=self.golden)
        facts = Facts.of_places(self.golden, rows)
        return replace(
            facts,
            layer=place + (-1 if named.layer is None else named.layer),
            index=facts.position - facts.cached if named.stage.cache else facts.index,
        ).behind(self._routed(round_, named.layer, count), {})

    def _held(self, round_: int, stage: str, count: int) -> np.ndarray:
        """What the golden holds of the tensor; rows without numbers where it has others."""
        held = self.golden.contents("float32", 0, round_, stage) if stage in self.golden.manifest.stages else None
        return np.zeros((count, 0), np.float32) if held is None or len(held) != count else held

    def _routed(self, round_: int, layer: int | None, count: int) -> Routed:
        """What the golden says of the router before these rows of a layer."""
        held = (self._held(round_, f"target.layers.{layer}.{part}", count) for part in ("experts", "router_logits"))
        return Routed.of(*(rows if rows.size else None for rows in held))


def chosen_rows(facts: RowFacts, where: Predicate, without: Recorded, with_: Recorded) -> Recorded:
    """The rows under a condition of what a hypothesis makes of the tensors, the others of what they are without it.

    Raises:
        NotComparable: the two differ in rows, and the condition holds for some of a tensor's.
    """
    mixed = {}
    for place in {**without, **with_}:
        true, other = without.get(place), with_.get(place)
        count = len(true if true is not None else other)  # type: ignore[arg-type]
        held = facts.holds(where, *place, count)
        if true is not None and other is not None and true.shape == other.shape:
            mixed[place] = np.where(held.reshape(-1, *[1] * (true.ndim - 1)), other, true)
        elif held.all() or not held.any():
            taken = other if count and held.all() else true
            if taken is not None:
                mixed[place] = taken
        else:
            raise NotComparable
    return mixed
