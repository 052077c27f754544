"""RoPE at long positions: target and drafter against float64, wrong configs refused, the pair's schedules compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from parity.compare.report import FAIL, INCONCLUSIVE, PASS
from parity.errors import NotOffered, ParityError
from parity.files import config_of
from parity.gates.context import Bench
from parity.gates.evidence import Check
from parity.gates.positions.judge import Judged, RotationError, judge
from parity.gates.positions.passes import SAME, cached_keys, first_wrong, misturned, plain_token
from parity.gates.positions.refusals import STYLES, not_refused, restyled
from parity.gates.positions.schedule import read_schedule
from parity.guard import told
from parity.partial import scratch
from parity.seam import Rotary

SIDES = {"target": ("gpt-oss-20b", "gpt-oss-120b"), "drafter": ("p-eagle-20b", "p-eagle-120b")}
SPREAD = 2048
"""Positions at which a second config, or another spelling of one, is looked at."""
SHOWN = 4

Case = tuple[Path, int | None]
"""Checkpoint folder, and how many positions (None for all)."""


def checks(bench: Bench) -> Iterator[Check]:
    """The rotation at every position, the passes, what must be refused, and whether the two schedules agree."""
    model = bench.golden.manifest.model
    own = {"target": Path(model.target.path), "drafter": Path(model.drafter.path)}
    for side, folder in own.items():
        yield _attempt(f"{side}, every position", lambda: _long(bench, side, _published(bench, side), folder))
    yield _attempt("the passes of the golden's pair", lambda: _passes(bench, own))
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


def _published(bench: Bench, side: str) -> list[Case]:
    """Every position of the first published config of a side, some of the others."""
    if bench.configs is None:
        raise NotOffered("the published configs (fixtures/configs) are not installed")
    return [(bench.configs / name, SPREAD if number else None) for number, name in enumerate(SIDES[side])]


def _long(bench: Bench, side: str, published: list[Case], own: Path) -> tuple[str, str, dict]:
    """Published configs and the golden's own as they are spelt, then at some positions in both spellings."""
    rotate, found = _rotary(bench), []
    try:
        for folder, some in [*published, (own, None)]:
            found.append(judge(rotate, folder, side, folder.name, bench.seed, some))
            found += _respelt(rotate, folder, side, bench.seed)
    except RotationError as error:
        return FAIL, f"{side} of {folder.name}: {error}", _figures(found)
    worst = max(found, key=lambda one: one.share)
    wrong = sum(one.share > 1 for one in found)
    if wrong:
        return FAIL, f"{wrong} of {len(found)} readings wrong; {worst}", _figures(found)
    return PASS, f"{len(found)} readings, at most {worst.share:.2g} of the float32 bound; {found[0]}", _figures(found)


def _respelt(rotate: Rotary, folder: Path, side: str, seed: int) -> Iterator[Judged]:
    own = config_of(folder)
    with scratch("positions") as temporary:
        for style in STYLES:
            (temporary / "config.json").write_text(json.dumps(restyled(own, style)))
            yield judge(rotate, temporary, side, f"{folder.name} under {style},", seed, SPREAD)


def _figures(found: Iterable[Judged]) -> dict:
    return {"readings": [asdict(one) for one in found]}


def _passes(bench: Bench, own: dict[str, Path]) -> tuple[str, str, dict]:
    """The golden's pair itself: every row of its caches, after a prompt and some rounds."""
    device, case = bench.device(), bench.golden.manifest.case
    token = plain_token(case.prompts[0].ids, device.describe().eos)
    try:
        keys, prompt = cached_keys(device, token, case.k)
    except ParityError:
        raise
    except Exception as error:
        raise told(bench.device_name, "what it handed back", error) from error
    schedules = {side: read_schedule(folder)[0] for side, folder in own.items()}
    wrong = [line for side, one in keys.items() if (line := first_wrong(schedules[side], side, one, prompt))]
    apart = {side: float(misturned(schedules[side], one).max()) for side, one in keys.items()}
    rows = " and ".join(f"{len(one)} {side} rows" for side, one in keys.items())
    line = f"{rows} turned by their positions, {prompt} in the prompt; keys at most {max(apart.values()):.1e} apart"
    return (FAIL if wrong else PASS), "; ".join(wrong) or line, {"apart": apart, "bound": SAME}


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
