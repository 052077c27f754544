"""The tap of a walk: it looks at every tensor as it comes, writes down what breaks the contract, and never raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parity.arrays import Array
from parity.compare.structure import DEVICE, INTEGER
from parity.contract.lines import Ledger
from parity.errors import UsageError
from parity.golden.ranks import merge_shards, split
from parity.pair_sizes import PairSizes
from parity.shown import RETURNED, View
from parity.stages import ACCEPT_LENGTH, Named, dataflow

Force = Callable[[str, Array], Array]
"""Returns what the device is to continue with."""


def unforced(stage: str, value: Array) -> Array:
    """The stage's own tensor."""
    return value


class Interrupt(Exception):
    """What a tap raises to see what a verb leaves behind."""


class ContractTap:
    """Records one sequence, round by round, against what the device declares.

    Attributes:
        round: 0 in the prefill.
        tensors: by stage, of the round under way.
        interrupt: how many tensors later the tap raises; None for never.
        rounds: tensors of each round that is over.
    """

    def __init__(self, ledger: Ledger, pair: PairSizes, view: View, precision: str, force: Force = unforced):
        self.ledger, self.pair, self.view, self.precision, self.force = ledger, pair, view, precision, force
        self.round, self.interrupt = 0, None  # type: tuple[int, int | None]
        self.tensors: dict[str, Array] = {}
        self.rounds: list[dict[str, Array]] = []
        self._passed: dict[str, list[Array]] = {}

    def __call__(self, stage: str, value: Any) -> Any:
        self._tick()
        if not self._named(stage) or not self._typed(stage, value):
            return value
        self.tensors[stage] = np.array(value, order="C")
        return self.force(stage, value)

    def rows(self, stage: str, value: Any, first: int, total: int) -> Any:
        """Some rows of a stage; see `parity.seam.RowTap`."""
        self._tick()
        if not (stage in self._passed or self._named(stage)) or not self._typed(stage, value):
            return value
        passed = [*(self._passed.get(stage, ()) if first else ()), np.array(value)]
        end = sum(map(len, passed))
        self.ledger.expect(
            "tap: rows",
            end == first + len(value) and end <= total,
            f"{stage} in round {self.round}: rows {first} to {first + len(value) - 1} of {total} come out of turn",
        )
        self._passed[stage] = passed
        self.tensors[stage] = np.concatenate(passed)
        forced = self.force(stage, value)
        return forced if len(forced) == len(value) else value

    def ranks(self, stage: str, shards: Sequence[Any], sharding: str) -> Sequence[Any]:
        """The ranks' tensors of a stage; see `parity.seam.RankTap`."""
        axes = self.view.declared[stage].stage.axes if stage in self.view.declared else ()
        try:
            whole = merge_shards(stage, shards, sharding, axes)
        except UsageError as error:
            self.ledger.expect("tap: shape", False, f"round {self.round}: {error}")
            return shards
        taken = self(stage, whole)
        return shards if taken is whole else split(stage, taken, len(shards), sharding, axes)

    def _tick(self) -> None:
        """Raise where it is time to."""
        if self.interrupt is not None:
            self.interrupt -= 1
            if self.interrupt < 0:
                self.interrupt = None
                raise Interrupt("a tap that raises on purpose")

    def _named(self, stage: str) -> bool:
        known = stage in self.view.declared
        where = "the prefill" if self.round == 0 else "a round"
        said = (
            f"{stage!r} is no stage of this pair (`parity inspect GOLDEN` lists them)"
            if not known
            else f"{stage} comes twice in round {self.round}"
            if stage in self.tensors
            else f"{stage} is no stage of {where}"
            if where.split()[-1] not in self.view.declared[stage].stage.when
            else f"{stage} is handed over in {where} and not declared as shown there"
        )
        fits = known and stage not in self.tensors and self.view.rows(stage, self.round) is not None
        return self.ledger.expect("tap: name", fits, said)

    def _typed(self, stage: str, value: Any) -> bool:
        kind = f"{type(value).__module__}.{type(value).__name__}"
        if not self.ledger.expect("tap: type", isinstance(value, np.ndarray), f"{stage} comes as a {kind}"):
            return False
        allowed = INTEGER if self.view.declared[stage].stage.exact else DEVICE[self.precision]
        fits, of = value.dtype.name in allowed and value.dtype.isnative, " or ".join(allowed)
        name = value.dtype.name if value.dtype.isnative else f"{value.dtype.name} in another byte order than the host's"
        self.ledger.expect("tap: dtype", fits, f"{stage} comes as {name}; it should be {of}")
        if fits and not self.view.declared[stage].stage.exact:
            self.ledger.expect(
                "tap: finite", bool(np.isfinite(value).all()), f"{stage} has NaN or Inf in round {self.round}"
            )
        return self._shaped(self.view.declared[stage], value)

    def _shaped(self, named: Named, value: Array) -> bool:
        """The axes behind the first, which counts rows: those are known when the round is over."""
        due, axes = self.pair.shape(named), ",".join(named.stage.axes)
        sizes = [f"{axis}={size}" for axis, size in zip(named.stage.axes, due, strict=True) if size]
        fits = value.ndim == len(due) and all(
            size is None or size == is_ for size, is_ in zip(due[1:], value.shape[1:], strict=True)
        )
        said = f"{named.name} comes as {list(value.shape)}; its axes are [{axes}]" + (
            f" with {', '.join(sizes)}" if sizes else ""
        )
        return self.ledger.expect("tap: shape", fits, said)

    def close(self, rows: dict[str, int], loop: bool = False) -> None:
        """End a round: what is missing, and how many rows each stage has.

        Args:
            rows: how many a stage owes by the letter of its first axis: `S`, `C`, `W`, `K`, `M`, and of the caches
                `kv.target` and `kv.drafter`.
            loop: the host may not see verify tokens; they are complete where declared.
        """
        for named in dataflow(self.view.declared.values(), self.round, rows.get("K")):
            shown = self.view.rows(named.name, self.round)
            if shown is None:
                continue
            taken = self.tensors.get(named.name)
            if taken is None:
                told = named.name in RETURNED
                self.ledger.expect("tap: complete", told, f"{named.name} is shown and missing in round {self.round}")
                continue
            self.ledger.expect("tap: complete", True, "")
            due = _rows_due(named, rows, shown)
            self.ledger.expect(
                "commit: caches" if named.stage.cache else "tap: rows",
                due is None or len(taken) == due,
                f"{named.name} has {len(taken)} rows in round {self.round}; {due} are due ({_why(named, shown)})",
            )
            self._counts(named, taken, rows)
        self.rounds.append(self.tensors)
        self.tensors, self._passed, self.round = {}, {}, self.round + 1

    def _counts(self, named: Named, taken: Array, rows: dict[str, int]) -> None:
        """What the exact stages of one number say."""
        if named.name == ACCEPT_LENGTH and "M" in rows:
            m = rows["M"]
            said = f"accept.length is {taken.tolist()} in round {self.round} where commit returned {m} ids"
            self.ledger.expect("commit: length", taken.tolist() == [m], said)
        if named.name.endswith(".length") and named.name.startswith("kv.") and named.name[:-7] in rows:
            due = rows[named.name[:-7]]
            said = f"{named.name} is {taken.tolist()} in round {self.round}, {due} committed rows are due"
            self.ledger.expect("commit: caches", taken.tolist() == [due], said)


def _rows_due(named: Named, rows: dict[str, int], shown: str) -> int | None:
    if shown == "last":
        return 1
    axis = named.stage.axes[0]
    if axis == "1":
        return 1
    if named.stage.cache:
        return rows.get(".".join(named.name.split(".")[:2]))
    return rows.get(axis)


def _why(named: Named, shown: str) -> str:
    if shown == "last":
        return "`last` is declared"
    if named.stage.cache:
        return "all committed rows"
    return {
        "S": "S of the prompt, n+1 of a verify",
        "C": "C committed rows, S-1 in the prefill",
        "W": "C committed and the masked rows, S-1 in the prefill",
        "B": "the last token and K masks",
        "K": "K drafts",
        "M": "the ids emitted",
        "1": "one number",
    }[named.stage.axes[0]]
