"""Edits with a meaning, digests made right again: what a comparison has to see although every byte is whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

from tests.torture.attempts import ANY, NOT_ACCEPTED, SAME, UNREADABLE, Attack, Attempt
from tests.torture.bases import Bases, lay_out
from tests.torture.child import warm_references
from tests.torture.evidence import Evidence, both, truth

Edit = Callable[[Evidence, Evidence, Random], str]
"""Changes golden and run; what it did, in words. '' where it changed nothing."""
EDITS: dict[str, tuple[Edit, frozenset[int]]] = {}


def edit(allowed: frozenset[int] = NOT_ACCEPTED) -> Callable[[Edit], Edit]:
    """Enter an edit under its name."""

    def enter(make: Edit) -> Edit:
        EDITS[make.__name__.strip("_").replace("_", " ")] = make, allowed
        return make

    return enter


def attack(bases: Bases) -> Attack:
    """Each edit on the hand-made pair; every fourth round of them on the pair of the tiny checkpoints."""
    from tests.torture import declarations, values  # noqa: F401  (they enter their edits)

    names = list(EDITS)

    def prepare(number: int, rng: Random, folder: Path) -> Attempt:
        name, real = names[number % len(names)], number // len(names) % 4 == 3
        make, allowed = EDITS[name]
        if real:
            warm_references()
        work = lay_out(bases.real if real else bases.small, folder)
        golden, run = both(work)
        said = make(golden, run, rng)
        golden.save()
        run.save()
        title = f"{name}: {said or 'does not apply'}{' (tiny pair)' if real else ''}"
        return Attempt(title, allowed if said else ANY, ("diff", "run", "--golden", "golden"), seconds=60.0)

    return Attack("edits", len(names) * 20, prepare, len(names) * 4)


@edit(SAME)
def _nothing(golden: Evidence, run: Evidence, rng: Random) -> str:
    return "written anew"


@edit(SAME)
def _rows_of_the_manifest_in_another_order(golden: Evidence, run: Evidence, rng: Random) -> str:
    rng.shuffle(golden.data["tensors"])
    rng.shuffle(run.data["tensors"])
    return "shuffled"


@edit(SAME)
def _shards_renamed(golden: Evidence, run: Evidence, rng: Random) -> str:
    side = rng.choice((golden, run))
    for row in side.data["tensors"]:
        (side.folder / row["shard"]).unlink(missing_ok=True)
        row["shard"] = f"x{row['shard']}"
    return side.folder.name


@edit(UNREADABLE)
def _same_producer(golden: Evidence, run: Evidence, rng: Random) -> str:
    run.data["producer"] = golden.data["producer"]
    return "the golden's producer runs the device"


@edit(UNREADABLE)
def _golden_without_modules(golden: Evidence, run: Evidence, rng: Random) -> str:
    golden.data["producer"]["modules"] = []
    return "as an imported one"


@edit(UNREADABLE)
def _kinds_exchanged(golden: Evidence, run: Evidence, rng: Random) -> str:
    side = rng.choice((golden, run))
    side.data["kind"] = "run" if side is golden else "golden"
    return side.folder.name


@edit()
def _golden_copied(golden: Evidence, run: Evidence, rng: Random) -> str:
    """The float32 truth, rounded once or not at all, for the whole run or for one prompt."""
    half = rng.random() < 0.5
    prompts = range(len(run.prompts())) if rng.random() < 0.5 else [rng.randrange(len(run.prompts()))]
    for stage in run.stages("f"):
        for place, true in truth(golden, run, stage):
            if place[1] in prompts:
                run.arrays[place] = true.astype(run.arrays[place].dtype) if half else true.copy()
    return f"{'rounded once' if half else 'bit for bit'}, prompts {list(prompts)}"


@edit()
def _floor_copied(golden: Evidence, run: Evidence, rng: Random) -> str:
    """The golden's own bfloat16 floor for a run."""
    for place in [place for place in run.arrays if ("bfloat16", *place[1:]) in golden.arrays]:
        floor = golden.arrays["bfloat16", *place[1:]]
        if floor.shape == run.arrays[place].shape:
            run.arrays[place] = floor.copy()
    return "relabelled as a run"


@edit()
def _garbage_behind_flips(golden: Evidence, run: Evidence, rng: Random) -> str:
    """Experts flipped at a few rows of a run that forced nothing, then noise behind them."""
    run.data["case"]["forced"] = rng.choice(([], ["target.tokens"], ["drafter.draft_tokens", "verify.tokens"]))
    noise, flipped = np.random.default_rng(rng.randrange(2**32)), 0
    for place in run.places("target.layers.0.experts"):
        chosen = run.arrays[place]
        scores = golden.arrays["float32", *place[1:3], "target.layers.0.router_logits"].astype(np.float64)
        for row in range(len(chosen)):
            order = np.argsort(-scores[row])
            k = chosen.shape[1]
            if scores[row, order[k - 1]] - scores[row, order[k]] < 0.03 * np.ptp(scores[row]):
                chosen[row] = np.sort([*order[: k - 1], order[k]])
                flipped += 1
    for stage in run.stages("f"):
        if stage.endswith(("ffn_out", ".out", "logits", "hidden", "fc_out")) and "router" not in stage:
            for place in run.places(stage):
                rows = rng.sample(range(len(run.arrays[place])), max(1, len(run.arrays[place]) // 3))
                array = run.arrays[place]
                array[rows] = noise.normal(0, 25, array[rows].shape).astype(array.dtype)
    return f"{flipped} flipped, forced {run.data['case']['forced']}"


@edit()
def _wide_floor(golden: Evidence, run: Evidence, rng: Random) -> str:
    """A floor of 24 %, a run 50 % wrong."""
    noise = np.random.default_rng(rng.randrange(2**32))

    def off(x: np.ndarray, true: np.ndarray, share: float) -> np.ndarray:
        size = share * np.sqrt(np.mean(true.astype(np.float64) ** 2))
        return (true + noise.normal(0, size, true.shape)).astype(x.dtype)

    for stage in run.stages("f"):
        for place, true in truth(golden, run, stage):
            for variant in ("bfloat16", "bfloat16.local"):
                if (floor := (variant, *place[1:])) in golden.arrays:
                    golden.arrays[floor] = off(golden.arrays[floor], true[-len(golden.arrays[floor]) :], 0.24)
            run.arrays[place] = off(run.arrays[place], true[-len(run.arrays[place]) :], 0.5)
    return "24 % and 50 %"


@edit()
def _floor_of_nothing(golden: Evidence, run: Evidence, rng: Random) -> str:
    """The floor is the truth: no noise, so nothing may differ from it."""
    stages = [stage for stage in run.stages("f") if stage.endswith((".q", "ffn_out", ".out", "logits", "fc_out"))]
    stage = rng.choice(stages)
    for place in golden.places(stage, "bfloat16"):
        golden.arrays[place] = golden.arrays["float32", *place[1:]].copy()
    return stage
