"""RoPE at long positions: target and drafter against float64, wrong configs refused, the pair's schedules compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS
from parity.drafter_config import NESTED, nested
from parity.errors import DeviceEnded, NotOffered, ParityError
from parity.families import MODEL, family_of
from parity.files import config_of
from parity.gates.context import GateContext
from parity.gates.gate import Check
from parity.gates.positions_passes import SAME, cached_keys, first_wrong, misturned, plain_token
from parity.gates.positions_rotation import RotationError, RotationResult, judge_rotation
from parity.gates.positions_schedules import compared
from parity.gates.rope import NEEDS, read_schedule, theta_beside, unit_heads
from parity.partial import scratch
from parity.raised import as_parity_error
from parity.seam import Rotary, Side

SIDES: dict[Side, tuple[str, ...]] = {
    "target": ("gpt-oss-20b", "gpt-oss-120b"),
    "drafter": ("p-eagle-20b", "p-eagle-120b"),
}
SPREAD = 2048
"""Positions at which a second config, or another spelling of one, is looked at."""
SHOWN = 4

Published = tuple[Path, int | None]
"""Checkpoint folder, and how many positions (None for all)."""


def checks(context: GateContext) -> Iterator[Check]:
    """The rotation at every position, the passes, what must be refused, and whether the two schedules agree."""
    model = context.golden.manifest.model
    own: dict[Side, Path] = {"target": Path(model.target.path), "drafter": Path(model.drafter.path)}
    family = family_of(model.family)
    if MODEL not in family.has:
        del own["drafter"]
        yield Check("drafter", NOT_JUDGED, f"a {family.name} drafter rotates nothing")
    for side, folder in own.items():
        yield _attempt(f"{side}, every position", partial(_long, context, side, folder))
    yield _attempt("the passes of the golden's pair", lambda: _passes(context, own))
    yield _attempt("wrong configs and positions refused", lambda: _refusals(context, own))
    if len(own) == len(SIDES):
        yield _attempt("schedules of the golden's pair", lambda: compared(own))


def _attempt(name: str, judge: Callable[[], tuple[str, str, dict[str, Any]]]) -> Check:
    """A check under this name; one that could not be made is inconclusive."""
    try:
        return Check(name, *judge())
    except ParityError as error:
        return Check(name, INCONCLUSIVE, str(error))


def _rotary(context: GateContext) -> Rotary:
    if context.rotate is None:
        module = context.device_name.partition(":")[0]
        raise NotOffered(f"{module} shows no rotation alone: add parity.seam.Rotary as {module}.rotate")
    return context.rotate


def _published(context: GateContext, side: Side) -> list[Published]:
    """Every position of the first published config of a side, some of the others."""
    if context.configs is None:
        raise NotOffered("the published configs (fixtures/configs) are not installed")
    return [(context.configs / name, SPREAD if number else None) for number, name in enumerate(SIDES[side])]


def _long(context: GateContext, side: Side, own: Path) -> tuple[str, str, dict[str, Any]]:
    """Published configs and the golden's own as they are spelt, then at some positions in both spellings."""
    published = _published(context, side)
    rotate = _rotary(context)
    readings: list[RotationResult] = []
    try:
        for folder, some in [*published, (own, None)]:
            readings.append(judge_rotation(rotate, folder, side, folder.name, context.seed, some))
            readings += _respelt(rotate, folder, side, context.seed)
    except RotationError as error:
        return FAIL, f"{side} of {folder.name}: {error}", _figures(readings)
    worst = max(readings, key=lambda reading: reading.share)
    wrong = sum(reading.share > 1 for reading in readings)
    if wrong:
        return FAIL, f"{wrong} of {len(readings)} readings wrong; {worst}", _figures(readings)
    return (
        PASS,
        f"{len(readings)} readings, at most {worst.share:.2g} of the float32 bound; {readings[0]}",
        _figures(readings),
    )


def _respelt(rotate: Rotary, folder: Path, side: Side, seed: int) -> Iterator[RotationResult]:
    own = config_of(folder)
    with scratch("positions") as temporary:
        for style in STYLES:
            (temporary / "config.json").write_text(json.dumps(restyled(own, style)))
            yield judge_rotation(rotate, temporary, side, f"{folder.name} under {style},", seed, SPREAD)


def _figures(readings: Iterable[RotationResult]) -> dict[str, Any]:
    return {"readings": [asdict(reading) for reading in readings]}


def _passes(context: GateContext, own: dict[Side, Path]) -> tuple[str, str, dict[str, Any]]:
    """The golden's pair itself: every row of its caches, after a prompt and some rounds."""
    device, case = context.device(), context.golden.manifest.case
    token = plain_token(case.prompts[0].ids, device.describe().eos)
    try:
        keys, prompt = cached_keys(device, token, case.k)
    except ParityError:
        raise
    except Exception as error:
        raise as_parity_error(context.device_name, "what it handed back", error) from error
    schedules = {side: read_schedule(folder)[0] for side, folder in own.items()}
    first = {"target": prompt, "drafter": family_of(device.describe().family).prompt_rows(prompt)}
    lines = [first_wrong(schedules[side], side, rows_of, first[side]) for side, rows_of in keys.items()]
    wrong = [line for line in lines if line]
    apart = {side: float(misturned(schedules[side], rows_of).max()) for side, rows_of in keys.items()}
    rows = " and ".join(f"{len(rows_of)} {side} rows" for side, rows_of in keys.items())
    line = f"{rows} turned by their positions, {prompt} in the prompt; keys at most {max(apart.values()):.1e} apart"
    return (FAIL if wrong else PASS), "; ".join(wrong) or line, {"apart": apart, "bound": SAME}


def _refusals(context: GateContext, own: dict[Side, Path]) -> tuple[str, str, dict[str, Any]]:
    """Wrong configs and positions, made from the golden's pair."""
    rotate = _rotary(context)
    sides = [not_refused(rotate, folder, side) for side, folder in own.items()]
    taken, tried = [what for wrong, _ in sides for what in wrong], sum(count for _, count in sides)
    figures = {"tried": tried, "wrong": taken}
    if not taken:
        return PASS, f"{tried} of {tried} as they must be: wrong ones are errors, good ones are taken", figures
    return FAIL, f"{len(taken)} of {tried} not as they must be, first: {'; '.join(taken[:SHOWN])}", figures


Config = dict[str, Any]
STYLES = ("rope_parameters", "rope_scaling")


def restyled(config: Config, style: str) -> Config:
    """The same config with its RoPE under `rope_parameters`, or under `rope_scaling` and `rope_theta`."""
    if nested(config):
        return config | {NESTED: restyled(config[NESTED], style)}
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {"rope_type": "default"})
    theta = rope.pop("rope_theta", theta_beside(config))
    rest = {key: value for key, value in config.items() if key not in (*STYLES, "rope_theta")}
    if style == "rope_parameters":
        return rest | {style: rope | {"rope_theta": theta}}
    return rest | {style: rope, "rope_theta": theta}


def unknown(config: Config, style: str) -> Iterator[tuple[str, Config]]:
    """Configs in this style whose schedule cannot be known, each with what is wrong about it."""
    if nested(config):
        yield from ((what, config | {NESTED: wrong}) for what, wrong in unknown(config[NESTED], style))
        return
    config = restyled(config, style)
    rope = config[style]
    kind = rope["rope_type"]
    yield "type 'nonsense'", config | {style: rope | {"rope_type": "nonsense"}}
    yield f"type '{kind}2'", config | {style: rope | {"rope_type": f"{kind}2"}}
    bare = {key: value for key, value in rope.items() if key != "rope_type"}
    yield "type 'nonsense' under its old name", config | {style: bare | {"type": "nonsense"}}
    if bare.keys() - {"rope_theta"}:
        yield "no type", config | {style: bare}
    for name in NEEDS[kind]:
        yield f"no {name}", config | {style: {key: value for key, value in rope.items() if key != name}}
    yield "no rope_theta", config | {style: {**rope, "rope_theta": None}, "rope_theta": None}
    other = next(other_style for other_style in STYLES if other_style != style)
    yield "two types in two spellings", config | {other: {"rope_type": "nonsense", "rope_theta": 1e4}}


def not_refused(rotate: Rotary, folder: Path, side: Side) -> tuple[list[str], int]:
    """Every wrong config and position that `rotate` took, and every right config that it did not; how many were tried.

    Without the right ones a device that refuses everything would pass.
    """
    own = config_of(folder)
    schedule, count = read_schedule(folder)
    x = unit_heads(np.random.default_rng(0), 2, 1, schedule.head_dim)
    tried = [(f"{side}, {style}: {what}", wrong, 0, True) for style in STYLES for what, wrong in unknown(own, style)]
    for style in STYLES:
        tried.append((f"{side}, {style}: a good config", restyled(own, style), count - 1, False))
    tried += [(f"{side}: position {at}", own, at, True) for at in (count, 2 * count, -1)]
    with scratch("positions") as temporary:
        wrong = [
            what for what, config, at, refuse in tried if _raises(rotate, temporary, side, config, x, at) != refuse
        ]
    return wrong, len(tried)


def _raises(rotate: Rotary, folder: Path, side: Side, config: Config, x: np.ndarray, position: int) -> bool:
    (folder / "config.json").write_text(json.dumps(config))
    try:
        rotate(folder, side, x, np.array([0, position]))
    except (NotOffered, DeviceEnded):
        raise
    except Exception:
        return True
    return False
