"""Edits of tensors: shifted, exchanged, scaled, made infinite, chosen wrongly."""

from __future__ import annotations

from random import Random

import numpy as np

from tests.torture.attempts import UNREADABLE
from tests.torture.edits import edit
from tests.torture.evidence import Evidence


def _one(side: Evidence, rng: Random, kind: str, rows: int = 1):
    """A tensor of floats or integers with so many rows at least."""
    places = [place for stage in side.stages(kind) for place in side.places(stage) if len(side.arrays[place]) >= rows]
    return rng.choice(places)


@edit()
def _stages_exchanged(golden: Evidence, run: Evidence, rng: Random) -> str:
    by_shape: dict = {}
    for place, array in run.arrays.items():
        if array.dtype.kind not in "iu":
            by_shape.setdefault((place[1], place[2], array.shape), []).append(place)
    pairs = [places for places in by_shape.values() if len(places) > 1]
    one, other = rng.sample(rng.choice(pairs), 2)
    if np.allclose(*(run.arrays[place].astype(np.float32) for place in (one, other)), rtol=0.1):
        return ""
    run.arrays[one], run.arrays[other] = run.arrays[other], run.arrays[one]
    return f"{one} and {other}"


@edit()
def _rounds_exchanged(golden: Evidence, run: Evidence, rng: Random) -> str:
    stage = rng.choice([stage for stage in run.stages("f") if not stage.startswith("kv.")])
    places = [place for place in run.places(stage) if place[2]]
    pairs = [(a, b) for a in places for b in places if a < b and run.arrays[a].shape == run.arrays[b].shape]
    if not pairs:
        return ""
    one, other = rng.choice(pairs)
    run.arrays[one], run.arrays[other] = run.arrays[other], run.arrays[one]
    return f"{one} and {other}"


@edit()
def _rows_shifted(golden: Evidence, run: Evidence, rng: Random) -> str:
    place = _one(run, rng, "f", 3)
    before = run.arrays[place]
    run.arrays[place] = np.roll(before, rng.choice((1, -1, 2)), axis=0)
    return f"{place}"


@edit()
def _row_repeated(golden: Evidence, run: Evidence, rng: Random) -> str:
    place = _one(run, rng, "f", 3)
    row = rng.randrange(1, len(run.arrays[place]))
    if np.array_equal(run.arrays[place][row], run.arrays[place][row - 1]):
        return ""
    run.arrays[place][row] = run.arrays[place][row - 1]
    return f"{place} row {row}"


@edit()
def _rows_lost(golden: Evidence, run: Evidence, rng: Random) -> str:
    place = _one(run, rng, "", 2)
    run.arrays[place] = run.arrays[place][:-1]
    return f"{place}"


@edit()
def _random_row(golden: Evidence, run: Evidence, rng: Random) -> str:
    place = _one(run, rng, "f")
    array, noise = run.arrays[place], np.random.default_rng(rng.randrange(2**32))
    row = rng.randrange(len(array))
    size = np.sqrt(np.mean(array.astype(np.float64) ** 2))
    array[row] = noise.normal(0, size, array[row].shape).astype(array.dtype)
    return f"{place} row {row}"


@edit()
def _one_element(golden: Evidence, run: Evidence, rng: Random) -> str:
    place = _one(run, rng, "f")
    array = run.arrays[place]
    largest = float(np.abs(array.astype(np.float64)).max())
    array.reshape(-1)[rng.randrange(array.size)] = 3 * largest + 1
    return f"{place}"


@edit()
def _scaled(golden: Evidence, run: Evidence, rng: Random) -> str:
    stage, factor = rng.choice(run.stages("f")), rng.choice((-1.0, 0.5, 1.1, 2.0, 0.0))
    for place in run.places(stage):
        run.arrays[place] = (run.arrays[place] * np.float32(factor)).astype(run.arrays[place].dtype)
    return f"{stage} x {factor}"


@edit()
def _infinite(golden: Evidence, run: Evidence, rng: Random) -> str:
    """Inf, or a mix of Inf and NaN, in the run, the golden, its floor, or all of them; one stage or every one."""
    value = rng.choice((np.inf, -np.inf, np.nan))
    sides = rng.choice(
        (
            ("run",),
            ("float32",),
            ("bfloat16",),
            ("float32", "bfloat16"),
            ("run", "float32", "bfloat16", "bfloat16.local"),
        )
    )
    stages = run.stages("f") if rng.random() < 0.5 else [rng.choice(run.stages("f"))]
    whole = rng.random() < 0.5
    for stage in stages:
        for side, places in ((run, run.places(stage)), (golden, golden.places(stage))):
            for place in places:
                if ("run" if side is run else place[0]) in sides:
                    side.arrays[place].reshape(-1)[: None if whole else 1] = value
    return f"{value} in {sides} of {len(stages)} stages"


@edit()
def _constant_everywhere(golden: Evidence, run: Evidence, rng: Random) -> str:
    stage, value = rng.choice(run.stages("f")), rng.choice((0.0, 1.0))
    for side in (golden, run):
        for place in side.places(stage):
            side.arrays[place][...] = value
    return f"{stage} is {value} on every side"


@edit()
def _third_expert(golden: Evidence, run: Evidence, rng: Random) -> str:
    """A choice that the device's own scores do not make."""
    places = [place for stage in run.stages("i") if stage.endswith(".experts") for place in run.places(stage)]
    place = rng.choice(places)
    scores = run.arrays[*place[:3], place[3].replace("experts", "router_logits")].astype(np.float64)
    row, k = rng.randrange(len(scores)), run.arrays[place].shape[1]
    order = np.argsort(-scores[row], kind="stable")
    if scores[row, order[k]] == scores[row, order[k - 1]]:
        return ""
    run.arrays[place][row] = np.sort([*order[: k - 1], order[k]])
    return f"{place} row {row}"


@edit()
def _expert_ids(golden: Evidence, run: Evidence, rng: Random) -> str:
    places = [place for stage in run.stages("i") if stage.endswith(".experts") for place in run.places(stage)]
    place = rng.choice(places)
    array = run.arrays[place]
    array[rng.randrange(len(array))] = rng.choice((-1, 10**6, 2**62))
    return f"{place}"


@edit()
def _token(golden: Evidence, run: Evidence, rng: Random) -> str:
    """Another id than the device's own logits say."""
    places = [place for stage in run.stages("i") if "tokens" in stage for place in run.places(stage)]
    place = rng.choice(places)
    array = run.arrays[place]
    array[rng.randrange(len(array))] += rng.choice((1, -1, 10**6, -(10**6)))
    return f"{place}"


@edit()
def _count(golden: Evidence, run: Evidence, rng: Random) -> str:
    """Positions, slots, lengths, emitted ids: integers that follow from the tokens."""
    stages = [stage for stage in run.stages("i") if "tokens" not in stage and "experts" not in stage]
    place = rng.choice([place for stage in stages for place in run.places(stage) if run.arrays[place].size])
    run.arrays[place].reshape(-1)[rng.randrange(run.arrays[place].size)] += rng.choice((1, -1, 2**40))
    return f"{place}"


@edit()
def _count_on_both_sides(golden: Evidence, run: Evidence, rng: Random) -> str:
    """Acceptance lengths and emitted ids that contradict the manifests, in golden and run alike."""
    places = [
        place for stage in ("accept.length", "accept.emitted") for place in run.places(stage) if run.arrays[place].size
    ]
    place = rng.choice(places)
    index = rng.randrange(run.arrays[place].size)
    for side, variant in ((run, place[0]), (golden, "float32")):
        side.arrays[variant, *place[1:]].reshape(-1)[index] += 1
    return f"{place}"


@edit()
def _tensor_lost(golden: Evidence, run: Evidence, rng: Random) -> str:
    side = rng.choice((golden, run))
    place = rng.choice(list(side.arrays))
    side.drop(place)
    return f"{side.folder.name} {place}"


@edit()
def _tensor_lost_on_both_sides(golden: Evidence, run: Evidence, rng: Random) -> str:
    """A round of a stage that nobody recorded: it was declared, so it is due."""
    place = rng.choice(list(run.arrays))
    for side in (golden, run):
        for lost in [one for one in side.arrays if one[1:] == place[1:]]:
            side.drop(lost)
    return f"{place}"


@edit()
def _narrow(golden: Evidence, run: Evidence, rng: Random) -> str:
    """Another dtype than the format allows there."""
    place = _one(run, rng, "")
    run.arrays[place] = run.arrays[place].astype(np.float16 if run.arrays[place].dtype.kind not in "iu" else np.float32)
    return f"{place}"


@edit(UNREADABLE)
def _digest(golden: Evidence, run: Evidence, rng: Random) -> str:
    """A byte of a shard behind the back of the manifest, in a tensor that a chained comparison reads."""
    side = rng.choice((golden, run))
    row = rng.choice([row for row in side.data["tensors"] if row["variant"] != "bfloat16.local"])
    row["shard"] = next(other["shard"] for other in side.data["tensors"] if other["shard"] != row["shard"])
    side.save = lambda save=side.save: (save(), _damaged(side))
    return f"{side.folder.name} {row['key']}"


def _damaged(side: Evidence) -> None:
    path = max(side.folder.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
