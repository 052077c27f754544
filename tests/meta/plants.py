"""What a defect does to a clean pair: changes of the run's values, of the golden, of what is recorded at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

from tests.meta.dumps import Pair
from tests.meta.worlds import D, N

Q, FFN, OUT = "target.layers.0.q", "target.layers.0.ffn_out", "target.layers.0.out"
LOGITS, KEYS, TOKENS, EXPERTS = "target.logits", "kv.target.0.k", "verify.tokens", "target.layers.0.experts"
POSITIONS, DRAFTS = "drafter.positions", "drafter.draft_tokens"

GOLDEN, RUN = ("float32", "bfloat16"), ("run",)
Plant = Callable[[Pair], None]
Change = Callable[[np.ndarray], np.ndarray]


def each(side: list, stage: str) -> Iterator[tuple[dict, tuple[int, str]]]:
    """Every tensor of a stage on one side: the dictionary that holds it, and its place."""
    yield from [(tensors, place) for tensors in side for place in tensors if place[1] == stage]


def values(change: Change, stage: str) -> Plant:
    """Change the values of a stage throughout the run; stored in float32, so that the change is exact."""

    def plant(pair: Pair) -> None:
        for tensors, place in each(pair.run, stage):
            exact = tensors[place].dtype.kind in "iu"
            tensors[place] = change(tensors[place] if exact else tensors[place].astype(np.float32))

    return plant


def element(stage: str, value: float, index: tuple[int, ...] = (0, 7)) -> Plant:
    """One element of one tensor of the run, in the run's own dtype."""

    def plant(pair: Pair) -> None:
        tensors, place = next(each(pair.run, stage))
        tensors[place][index] = value

    return plant


def drop(stage: str, variants: tuple[str, ...], declared: bool = True) -> Plant:
    """Take a stage's tensors out of these variants, and out of the declared list too where asked."""

    def plant(pair: Pair) -> None:
        sides = pair.golden | {"run": pair.run}
        for variant in variants:
            for tensors, place in each(sides.get(variant, []), stage):
                del tensors[place]
        if not declared:
            (pair.run_stages if variants == ("run",) else pair.golden_stages).remove(stage)

    return plant


def rename(stage: str, to: str, golden: bool) -> Plant:
    """Another name on one side, in the list and on the tensors."""

    def plant(pair: Pair) -> None:
        for side in pair.golden.values() if golden else [pair.run]:
            for tensors, place in each(side, stage):
                tensors[place[0], to] = tensors.pop(place)
        stages = pair.golden_stages if golden else pair.run_stages
        stages[stages.index(stage)] = to

    return plant


def add(stage: str, like: str, golden: bool) -> Plant:
    """One stage more on one side."""

    def plant(pair: Pair) -> None:
        for side in pair.golden.values() if golden else [pair.run]:
            for tensors, place in each(side, like):
                tensors[place[0], stage] = tensors[place]
        (pair.golden_stages if golden else pair.run_stages).append(stage)

    return plant


def golden(change: Change, stage: str, variants=GOLDEN) -> Plant:
    """Change the golden's side of a stage; with `run`, all sides alike."""

    def plant(pair: Pair) -> None:
        sides = pair.golden | {"run": pair.run}
        for variant in variants:
            for tensors, place in each(sides[variant], stage):
                tensors[place] = change(tensors[place])

    return plant


def swap(stage: str, first: tuple[int, int], second: tuple[int, int]) -> Plant:
    """Exchange two tensors of the run, by (prompt, round)."""

    def plant(pair: Pair) -> None:
        (p, r), (q, s) = first, second
        pair.run[p][r, stage], pair.run[q][s, stage] = pair.run[q][s, stage], pair.run[p][r, stage]

    return plant


def instead(stage: str, place: tuple[int, int], source: tuple[int, int, str]) -> Plant:
    """One tensor of the run is another one of its tensors."""

    def plant(pair: Pair) -> None:
        prompt, round_, other = source
        pair.run[place[0]][place[1], stage] = pair.run[prompt][round_, other].copy()

    return plant


def noise(stage: str, times: float, row: int | None = None, row_times: float = 1.0) -> Plant:
    """The device's error is the floor's, so many times; one row of the first tensor may have another factor."""

    def plant(pair: Pair) -> None:
        for number, (tensors, place) in enumerate(each(pair.run, stage)):
            prompt = next(i for i, one in enumerate(pair.run) if one is tensors)
            true = pair.golden["float32"][prompt][place]
            error = tensors[place].astype(np.float32) - true
            factor = np.full((len(true),) + (1,) * (true.ndim - 1), times, np.float32)
            if row is not None and number == 0:
                factor[row] = row_times
            tensors[place] = true + factor * error

    return plant


def outlier(pair: Pair) -> None:
    """Twice the noise everywhere, and one logit too low by a thousand standard deviations of it: no token changes."""
    noise(LOGITS, 2.0)(pair)
    tensors, place = next(each(pair.run, LOGITS))
    true = pair.golden["float32"][0][place]
    tensors[place][0, 777] -= 1000 * np.sqrt(np.mean((tensors[place] - true) ** 2))


def copied(pair: Pair) -> None:
    """The golden, rounded once: a recorder that stands behind the forcing."""
    for tensors, place in each(pair.run, FFN):
        prompt = next(i for i, one in enumerate(pair.run) if one is tensors)
        tensors[place] = pair.golden["float32"][prompt][place].astype(ml_dtypes.bfloat16)


def flipped_bit(pair: Pair) -> None:
    """One bit of a shard on disk."""

    def flip(folder: Path) -> None:
        shard = folder / "run" / "p000.bfloat16.safetensors"
        data = bytearray(shard.read_bytes())
        data[-1000] ^= 0x40
        shard.write_bytes(data)

    pair.after = flip


def flipped_exponent(pair: Pair) -> None:
    """The top exponent bit of one bfloat16 in memory, before it was written."""
    tensors, place = next(each(pair.run, OUT))
    bits = tensors[place].view(np.uint16)
    bits[3, 5] ^= 0x4000


def unrelated(x: np.ndarray) -> np.ndarray:
    """Random numbers of the same size."""
    return (np.random.default_rng(3).normal(size=x.shape) * np.sqrt(np.mean(x.astype(np.float32) ** 2))).astype(x.dtype)


def one_row(x: np.ndarray) -> np.ndarray:
    """One row of the long prompt is random."""
    if len(x) > 1000:
        x[1234] = unrelated(x[1234])
    return x


def one_head(x: np.ndarray) -> np.ndarray:
    """One head is another one's."""
    x[:, 2] = x[:, 3]
    return x


def transposed(pair: Pair) -> None:
    """Axes D and N exchanged, labels and data."""
    pair.axes[Q] = ("S", "D", "N")
    for tensors, place in each(pair.run, Q):
        tensors[place] = np.ascontiguousarray(tensors[place].transpose(0, 2, 1))


def relabelled(pair: Pair) -> None:
    """Axes named in another order than they are stored."""
    pair.axes[Q] = ("N", "S", "D")


def damaged_cache(pair: Pair) -> None:
    """A rollback that clears an old row of the cache in the last round."""
    for tensors in pair.run:
        tensors[3, KEYS] = tensors[3, KEYS].copy()
        tensors[3, KEYS][5] = 0


def lost_round(pair: Pair) -> None:
    """The last round of one stage was not recorded."""
    del pair.run[1][3, OUT]


def column_pair(x: np.ndarray) -> np.ndarray:
    """Two columns exchanged."""
    return x[:, [1, 0, *range(2, x.shape[1])]]


def with_nan(x: np.ndarray) -> np.ndarray:
    """One NaN."""
    x.flat[9] = np.nan
    return x


def with_inf(x: np.ndarray) -> np.ndarray:
    """Infinity in every second element."""
    x.flat[::2] = np.inf
    return x


def biased(x: np.ndarray) -> np.ndarray:
    """A thousandth of the RMS added everywhere."""
    return x + np.float32(0.001 * np.sqrt(np.mean(x**2)))


def misread(x: np.ndarray) -> np.ndarray:
    """Heads and head dimension exchanged in the data, not in the shape."""
    return x.transpose(0, 2, 1).reshape(-1, N, D)
