"""What changed of whole cells: they begin to fail, give no verdict, vanish, or are new; so do their stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from parity.compare.report import FAIL
from parity.history.changes import CELL, RECENT, Change, ChangeKind, Dated, Observed, between, lasting
from parity.history.consistent import GOOD
from parity.history.series import SHORT, Stamp

if TYPE_CHECKING:
    import pandas as pd


Bounded = tuple[str, str, str, str]
"""(stage, mode, metric, unit)"""


COLUMNS = ("night", "cell", "stage", "mode", "metric", "value", "unit", "bound", "verdict", "cell_verdict", "golden")


def cell_changes(frame: pd.DataFrame, stamps: Sequence[Stamp]) -> Iterator[Observed]:
    """What the cells of the last of these nights show against their earlier nights."""
    number = {stamp.night: place for place, stamp in enumerate(stamps)}
    frame = frame[frame["night"].isin(list(number))]
    left_out = _left_out(frame, number)
    frame = frame.assign(place=frame["night"].map(number).to_numpy(np.int64))
    again = _worse_again(frame[frame["repeat"] > 0])
    frame = frame.loc[frame["repeat"] == 0, [*COLUMNS, "place"]]
    for cell, rows in frame.groupby("cell", observed=True, sort=True):
        without = [place for place, names in left_out.items() if str(cell) in names]
        yield from _CellPast(str(cell), rows, stamps, without, again.get(str(cell), {})).changes()


def _worse_again(repeats: pd.DataFrame) -> dict[str, dict[int, str]]:
    """By cell and number of the night, the gravest verdict that is no pass of those that it was measured again to."""
    found: dict[str, dict[int, str]] = {}
    told = repeats[~repeats["cell_verdict"].isin(list(GOOD))].drop_duplicates(["cell", "place", "cell_verdict"])
    for cell, place, verdict in zip(told["cell"], told["place"].tolist(), told["cell_verdict"], strict=True):
        nights = found.setdefault(str(cell), {})
        nights[place] = FAIL if FAIL in (verdict, nights.get(place)) else str(verdict)
    return found


def _left_out(frame: pd.DataFrame, number: Mapping[str, int]) -> dict[int, set[str]]:
    """By number of the night, the cells that the matrix has and the night did not judge."""
    found: dict[int, set[str]] = {}
    told = frame[frame["left_out"] != ""].drop_duplicates(["night", "left_out"])
    for night, names in zip(told["night"], told["left_out"], strict=True):
        found.setdefault(number[str(night)], set()).update(str(names).split())
    return found


class _CellPast:
    """One cell and its rows of all nights.

    `history` maps the nights that recorded it to its verdict, `goldens` to the digest of its golden where it is known.
    `left_out` are nights that did not judge it although the matrix has it. A night in which it passed at first and
    not when it was measured again has the graver verdict; `again` are those verdicts.
    """

    def __init__(
        self,
        name: str,
        frame: pd.DataFrame,
        stamps: Sequence[Stamp],
        left_out: Sequence[int],
        again: Mapping[int, str],
    ):
        self.name, self.frame, self.stamps, self.tonight = name, frame, stamps, len(stamps) - 1
        self.left_out = left_out
        heads = frame.drop_duplicates("place")
        first = dict(zip(heads["place"].tolist(), map(str, heads["cell_verdict"]), strict=True))
        self.again = {place: again[place] for place, verdict in first.items() if verdict in GOOD and place in again}
        self.history = {**first, **self.again}
        goldens = zip(heads["place"].tolist(), map(str, heads["golden"]), strict=True)
        self.goldens = {place: digest for place, digest in goldens if digest}

    def changes(self) -> Iterator[Observed]:
        """At most one about its verdict, and those about its stages."""
        if self.tonight not in self.history:
            yield from () if self.tonight in self.left_out else self._gone()
        elif len(self.history) == 1:
            if self.tonight:
                yield self._told("new", self.tonight, None, "is new: no earlier night has it")
        else:
            yield from self._verdict()
            yield from self._stages()
            yield from self._golden()

    def _gone(self) -> Iterator[Observed]:
        last = max(self.history)
        since = next(night for night in range(last + 1, self.tonight + 1) if night not in self.left_out)
        if self.tonight - last <= RECENT:
            yield self._told("gone", since, last, "has no result: evidence that was there is missing")

    def _golden(self) -> Iterator[Observed]:
        """Another golden than on the last night whose golden is known."""
        *earlier, last = sorted(self.goldens) or [-1]
        if last != self.tonight or not earlier or self.goldens[last] == self.goldens[earlier[-1]]:
            return
        now, then = (self.goldens[night][:SHORT] for night in (last, earlier[-1]))
        found = self._told("golden", last, earlier[-1], "")
        words = f"is another one than in night {self.stamps[earlier[-1]].night} ({now}, it was {then})"
        yield replace(found, change=replace(found.change, sentence=f"the golden of {self.name} {words}"))

    def _verdict(self) -> Iterator[Observed]:
        verdict = self.history[self.tonight]
        since, before = self._run({FAIL} if verdict == FAIL else set(GOOD) if verdict in GOOD else None)
        if before is None:
            return
        earlier = self.history[before]
        if verdict == FAIL and (last := self._last(GOOD, since)) is not None:
            yield self._failing(since, last)
        elif verdict in GOOD and earlier == FAIL and self.tonight - since < RECENT:
            yield self._told(
                "improvement", since, before, f"passes since {self.stamps[since].date}; it failed before", 0.0, 1.0
            )
        elif verdict not in (*GOOD, FAIL) and earlier in (*GOOD, FAIL):
            words = f"gives no verdict since {self.stamps[since].date} ({verdict}); it was {earlier} before"
            yield self._told("broken", since, before, words, float(earlier in GOOD), 0.0)

    def _run(self, same: set[str] | None) -> tuple[int, int | None]:
        """First night of the run of such verdicts that ends tonight, and the night before; `same` None: no verdict."""
        nights = sorted(self.history, reverse=True)
        since = self.tonight
        for night in nights:
            verdict = self.history[night]
            if (verdict not in same) if same else (verdict in (*GOOD, FAIL)):
                return since, night
            since = night
        return since, None

    def _last(self, verdicts: Sequence[str], behind: int) -> int | None:
        return max(
            (night for night, verdict in self.history.items() if night < behind and verdict in verdicts), default=None
        )

    def _failing(self, since: int, last: int) -> Observed:
        """The first stage that fails tonight and passed on the last good night."""
        tonight, good = self._rows(self.tonight), self._rows(last)
        now = tonight[(tonight["verdict"] == FAIL) & (tonight["stage"] != CELL)]
        then = good[good["verdict"] == FAIL]
        known = _names(then)
        now = now[[stage not in known for stage in zip(now["stage"], now["mode"], strict=True)]]
        words = f"fails since {self.stamps[since].date} ({lasting(self._nights(since))})"
        if now.empty:
            why = "where it is measured again" if self.tonight in self.again else "a gate; no stage's verdict changed"
            return self._told("regression", since, last, f"{words}: {why}", 1.0, 0.0)
        first = now[(now["stage"] == now.iloc[0]["stage"]) & (now["mode"] == now.iloc[0]["mode"])]
        stages = len(now.drop_duplicates(["stage", "mode"]))
        return self._at(
            first, good, since, last, f"{words}, first at", f"; {stages} stages fail that passed" if stages > 1 else ""
        )

    def _at(self, rows: pd.DataFrame, good: pd.DataFrame, since: int, last: int, words: str, more: str) -> Observed:
        beyond = (rows["value"] / rows["bound"].where(rows["bound"] > 0)).fillna(0.0)
        row = rows.loc[beyond.idxmax()] if beyond.max() > 0 else rows.iloc[0]
        same = good[(good["stage"] == row["stage"]) & (good["mode"] == row["mode"]) & (good["metric"] == row["metric"])]
        before = float(same["value"].iloc[0]) if len(same) else float("nan")
        mode = f" ({row['mode']})" if row["mode"] else ""
        line = f"{words} {row['stage']}{mode}: {row['metric']} {before:.4g} to {row['value']:.4g} {row['unit']}{more}"
        where = (str(row["stage"]), str(row["mode"]), str(row["metric"]))
        return self._told("regression", since, last, line, before, float(row["value"]), where)

    def _stages(self) -> Iterator[Observed]:
        """Stages that a judged cell lost or got."""
        judged = [night for night in sorted(self.history) if self.history[night] in (*GOOD, FAIL)]
        if len(judged) < 2 or judged[-1] != self.tonight:
            return
        tonight, before = (self._rows(night) for night in judged[:-3:-1])
        now, then = _names(tonight), _names(before)
        lost, got = [name for name in then if name not in now], [name for name in now if name not in then]
        differing: tuple[tuple[ChangeKind, list[tuple[str, str]]], ...] = (("gone", lost), ("new", got))
        for kind, names in differing:
            if names:
                stage, mode = names[0]
                more = f", and {len(names) - 1} more" if len(names) > 1 else ""
                words = f"{stage}{f' ({mode})' if mode else ''} is {kind}{more}"
                yield self._told(kind, self.tonight, judged[-2], words, at=(stage, mode, ""))
        yield from self._lost_figures(_bounded(tonight), _bounded(before), now, judged[-2])

    def _lost_figures(
        self,
        now: Mapping[Bounded, None],
        then: Mapping[Bounded, None],
        stages: Mapping[tuple[str, str], None],
        last: int,
    ) -> Iterator[Observed]:
        """Bounded figures of a stage that is still there, which have no number any more, or one of another unit."""
        lost = [figure for figure in then if figure not in now and figure[:2] in stages]
        if lost:
            stage, mode, metric, unit = lost[0]
            more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
            words = f"{metric} of {stage}{f' ({mode})' if mode else ''} in {unit} is gone{more}"
            yield self._told("gone", self.tonight, last, words, at=(stage, mode, metric))

    def _rows(self, night: int) -> pd.DataFrame:
        return self.frame[self.frame["place"] == night]

    def _nights(self, since: int) -> int:
        return sum(night >= since for night in self.history)

    def _told(
        self,
        kind: ChangeKind,
        since: int,
        last: int | None,
        words: str,
        before: float = float("nan"),
        after: float = float("nan"),
        at: tuple[str, str, str] = (CELL, "", "passed"),
    ) -> Observed:
        dated = Dated(since, last, self.stamps)
        stage, mode, metric = at
        change = Change(
            cell=self.name, stage=stage, mode=mode, metric=metric, kind=kind, before=before, after=after,
            band=(before, before), nights=self._nights(since),
            since_night=dated.night, since_date=dated.date, commits=dated.commits,
            sentence=f"{self.name}: {words}; {between(dated.commits)}",
        )  # fmt: skip
        return Observed(-1, since, np.inf, change)


def _bounded(rows: pd.DataFrame) -> dict[Bounded, None]:
    """Stage, mode, metric and unit of the figures of one night that a bound judges, in order."""
    rows = rows[rows["bound"].notna() & rows["value"].notna()]
    names = (map(str, rows[name]) for name in ("stage", "mode", "metric", "unit"))
    return dict.fromkeys(zip(*names, strict=True))


def _names(rows: pd.DataFrame) -> dict[tuple[str, str], None]:
    """Stages and modes of one night, in order."""
    return dict.fromkeys(zip(map(str, rows["stage"]), map(str, rows["mode"]), strict=True))
