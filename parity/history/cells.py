"""What happened to whole cells: they began to fail, gave no verdict, vanished, or are new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from parity.compare.report import FAIL, PASS, WARN
from parity.history.changes import RECENT, Change, Finding, between, lasting, told
from parity.history.series import Stamp

if TYPE_CHECKING:
    import pandas as pd

GOOD = (PASS, WARN)
CELL = "cell"
COLUMNS = ("night", "cell", "stage", "mode", "metric", "value", "unit", "bound", "verdict", "cell_verdict")


def findings(frame: pd.DataFrame, stamps: Sequence[Stamp]) -> Iterator[Finding]:
    """What the cells of the last of these nights show against their earlier nights."""
    number = {one.night: place for place, one in enumerate(stamps)}
    frame = frame.loc[frame["night"].isin(list(number)) & (frame["repeat"] == 0), list(COLUMNS)]
    frame = frame.assign(place=frame["night"].map(number).to_numpy(np.int64))
    for cell, rows in frame.groupby("cell", observed=True, sort=True):
        yield from _Cell(str(cell), rows, stamps).findings()


class _Cell:
    """One cell and its rows of all nights; `history` maps the nights that recorded it to its verdict."""

    def __init__(self, name: str, frame: pd.DataFrame, stamps: Sequence[Stamp]):
        self.name, self.frame, self.stamps, self.tonight = name, frame, stamps, len(stamps) - 1
        heads = frame.drop_duplicates("place")
        self.history = dict(zip(heads["place"].tolist(), map(str, heads["cell_verdict"]), strict=True))

    def findings(self) -> Iterator[Finding]:
        """At most one about its verdict, and those about its stages."""
        if self.tonight not in self.history:
            yield from self._gone()
        elif len(self.history) == 1:
            if self.tonight:
                yield self._told("new", self.tonight, None, "is new: no earlier night has it")
        else:
            yield from self._verdict()
            yield from self._stages()

    def _gone(self) -> Iterator[Finding]:
        last = max(self.history)
        if self.tonight - last <= RECENT:
            yield self._told("gone", last + 1, last, "has no result: evidence that was there is missing")

    def _verdict(self) -> Iterator[Finding]:
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
        """The first night of the run of such verdicts that ends tonight, and the night before; None: no verdict at all."""
        nights = sorted(self.history, reverse=True)
        since = self.tonight
        for night in nights:
            verdict = self.history[night]
            if (verdict not in same) if same else (verdict in (*GOOD, FAIL)):
                return since, night
            since = night
        return since, None

    def _last(self, verdicts: Sequence[str], behind: int) -> int | None:
        return max((night for night, one in self.history.items() if night < behind and one in verdicts), default=None)

    def _failing(self, since: int, last: int) -> Finding:
        """The first stage that fails tonight and passed on the last good night."""
        tonight, good = self._rows(self.tonight), self._rows(last)
        now = tonight[(tonight["verdict"] == FAIL) & (tonight["stage"] != CELL)]
        then = good[good["verdict"] == FAIL]
        known = _names(then)
        now = now[[one not in known for one in zip(now["stage"], now["mode"], strict=True)]]
        words = f"fails since {self.stamps[since].date} ({lasting(self._nights(since))})"
        if now.empty:
            return self._told("regression", since, last, f"{words}: a gate; no stage's verdict changed", 1.0, 0.0)
        first = now[(now["stage"] == now.iloc[0]["stage"]) & (now["mode"] == now.iloc[0]["mode"])]
        stages = len(now.drop_duplicates(["stage", "mode"]))
        return self._at(
            first, good, since, last, f"{words}, first at", f"; {stages} stages fail that passed" if stages > 1 else ""
        )

    def _at(self, rows: pd.DataFrame, good: pd.DataFrame, since: int, last: int, words: str, more: str) -> Finding:
        beyond = (rows["value"] / rows["bound"].where(rows["bound"] > 0)).fillna(0.0)
        row = rows.loc[beyond.idxmax()] if beyond.max() > 0 else rows.iloc[0]
        same = good[(good["stage"] == row["stage"]) & (good["mode"] == row["mode"]) & (good["metric"] == row["metric"])]
        before = float(same["value"].iloc[0]) if len(same) else float("nan")
        mode = f" ({row['mode']})" if row["mode"] else ""
        line = f"{words} {row['stage']}{mode}: {row['metric']} {before:.4g} to {row['value']:.4g} {row['unit']}{more}"
        where = (str(row["stage"]), str(row["mode"]), str(row["metric"]))
        return self._told("regression", since, last, line, before, float(row["value"]), where)

    def _stages(self) -> Iterator[Finding]:
        """Stages that a judged cell lost or got."""
        judged = [night for night in sorted(self.history) if self.history[night] in (*GOOD, FAIL)]
        if len(judged) < 2 or judged[-1] != self.tonight:
            return
        now, then = (_names(self._rows(night)) for night in judged[:-3:-1])
        for kind, names in (
            ("gone", [one for one in then if one not in now]),
            ("new", [one for one in now if one not in then]),
        ):
            if names:
                stage, mode = names[0]
                more = f", and {len(names) - 1} more" if len(names) > 1 else ""
                words = f"{stage}{f' ({mode})' if mode else ''} is {kind}{more}"
                yield self._told(kind, self.tonight, judged[-2], words, at=(stage, mode, ""))

    def _rows(self, night: int) -> pd.DataFrame:
        return self.frame[self.frame["place"] == night]

    def _nights(self, since: int) -> int:
        return sum(night >= since for night in self.history)

    def _told(
        self, kind, since, last, words, before=float("nan"), after=float("nan"), at=(CELL, "", "passed")
    ) -> Finding:
        when = told(since, last, self.stamps)
        stage, mode, metric = at
        change = Change(
            cell=self.name, stage=stage, mode=mode, metric=metric, kind=kind, before=before, after=after, band=(before, before),
            nights=self._nights(since), sentence=f"{self.name}: {words}; {between(when['commits'])}", **when,
        )  # fmt: skip
        return Finding(-1, since, np.inf, change)


def _names(rows: pd.DataFrame) -> dict[tuple[str, str], None]:
    """Stages and modes of one night, in order."""
    return dict.fromkeys(zip(map(str, rows["stage"]), map(str, rows["mode"]), strict=True))
