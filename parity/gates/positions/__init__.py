"""RoPE at long positions: target and drafter against float64, wrong configs refused, the pair's schedules compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from parity.compare.report import FAIL, INCONCLUSIVE, PASS
from parity.errors import NotOffered, ParityError
from parity.gates.bench import Bench
from parity.gates.evidence import Check
from parity.gates.positions.judge import Judged, RotationError, judge
from parity.gates.positions.refusals import STYLES, not_refused, restyled
from parity.gates.positions.schedule import read_schedule
from parity.seam import Rotary

SIDES = {"target": ("gpt-oss-20b", "gpt-oss-120b"), "drafter": ("p-eagle-20b", "p-eagle-120b")}
SPREAD = 2048
"""Positions at which a second config, or another spelling of one, is looked at."""
SHOWN = 4

Case = tuple[str, Path, int | None]
"""Side, checkpoint folder, and how many positions (None for all)."""


def checks(bench: Bench) -> Iterator[Check]:
    """The published parameters, the golden's own pair, what must be refused, and whether the two schedules agree."""
    model = bench.golden.manifest.model
    own = {"target": Path(model.target.path), "drafter": Path(model.drafter.path)}
    for side, names in SIDES.items():
        yield _attempt(f"{side}, published parameters", lambda: _long(bench, _published(bench, side, names)))
    yield _attempt("the golden's pair", lambda: _long(bench, [(side, folder, None) for side, folder in own.items()]))
    yield _attempt("wrong configs and positions refused", lambda: _refusals(bench, own))
    yield _attempt("schedules of the golden's pair", lambda: _compared(own))


def _attempt(name: str, found: Callable[[], tuple[str, str, dict]]) -> Check:
    """A check under this name; one that could not be made is inconclusive."""
    try:
        return Check(name, *found())
    except ParityError as error:
        return Check(name, INCONCLUSIVE, str(error))


def _rotary(bench: Bench) -> Rotary:
    if bench.rotate is None:
        module = bench.device_name.partition(":")[0]
        raise NotOffered(f"{module} shows no rotation by itself: add parity.seam.Rotary as {module}.rotate")
    return bench.rotate


def _published(bench: Bench, side: str, names: Iterable[str]) -> list[Case]:
    """Every position of the first published config of a side, some of the others."""
    if bench.configs is None:
        raise NotOffered("the published configs (fixtures/configs) are not installed")
    return [(side, bench.configs / name, SPREAD if number else None) for number, name in enumerate(names)]


def _long(bench: Bench, cases: Iterable[Case]) -> tuple[str, str, dict]:
    """Every case as its config is spelt, then at some positions in both spellings."""
    rotate, found = _rotary(bench), []
    try:
        for side, folder, some in cases:
            found.append(judge(rotate, folder, side, folder.name, bench.seed, some))
            found += _respelt(rotate, folder, side, bench.seed)
    except RotationError as error:
        return FAIL, f"{side} of {folder.name}: {error}", _figures(found)
    worst = max(found, key=lambda one: one.share)
    wrong = sum(one.share > 1 for one in found)
    line = f"{wrong} of {len(found)} readings wrong; {worst}" if wrong else f"{len(found)} readings; {worst}"
    return (FAIL if wrong else PASS), line, _figures(found)


def _respelt(rotate: Rotary, folder: Path, side: str, seed: int) -> Iterator[Judged]:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    with TemporaryDirectory(prefix="parity-positions-") as temporary:
        for style in STYLES:
            (Path(temporary) / "config.json").write_text(json.dumps(restyled(config, style)))
            yield judge(rotate, Path(temporary), side, f"{folder.name} under {style},", seed, SPREAD)


def _figures(found: Iterable[Judged]) -> dict:
    return {"readings": [asdict(one) for one in found]}


def _refusals(bench: Bench, own: dict[str, Path]) -> tuple[str, str, dict]:
    """Wrong configs and positions, made from the golden's pair."""
    rotate = _rotary(bench)
    found = [not_refused(rotate, folder, side) for side, folder in own.items()]
    taken, tried = [what for one, _ in found for what in one], sum(count for _, count in found)
    figures = {"tried": tried, "wrong": taken}
    if not taken:
        return PASS, f"{tried} of {tried} as they must be: wrong ones are errors, good ones are taken", figures
    return FAIL, f"{len(taken)} of {tried} not as they must be, first: {'; '.join(taken[:SHOWN])}", figures


def _compared(own: dict[str, Path]) -> tuple[str, str, dict]:
    """A report: a drafter may be trained on another schedule than its target's."""
    schedules = {side: read_schedule(folder)[0] for side, folder in own.items()}
    target, drafter = schedules.values()
    same = (target.kind, target.theta, target.parameters) == (drafter.kind, drafter.theta, drafter.parameters)
    line = f"target {target}, drafter {drafter}: {'the same' if same else 'they differ'}"
    return PASS, line, {side: asdict(one) for side, one in schedules.items()} | {"same": same}
