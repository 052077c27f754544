"""The planted defects: what each changes, the stage and the kind that have to be named, and who lets it pass.

A kind is a structural finding's, a bound's statistic, `choices` (a wrong id), `evidence` (inconclusive: a pass
would rest on nothing) or `digest` (unreadable input).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from tests.meta.worlds import D, LONG, N, SHORT, WIDE, Pair, Size

Q, FFN, OUT, EMBED = "target.layers.0.q", "target.layers.0.ffn_out", "target.layers.0.out", "target.embed"
LOGITS, KEYS, TOKENS, EXPERTS = "target.logits", "kv.target.0.k", "verify.tokens", "target.layers.0.experts"
NOBODY = ("-", "-", "-")


@dataclass(frozen=True)
class Defect:
    """One planted defect.

    Args:
        name: what is wrong, in a few words.
        plant: changes a clean pair.
        stage: the stage that has to be named, and no other.
        kind: how it has to be named.
        world: the pair it is planted in.
        peers: verdicts of Polygraphy, SGLang's comparator and msprobe where recorded.
    """

    name: str
    plant: Callable[[Pair], None]
    stage: str
    kind: str
    world: Size = SHORT
    peers: tuple[str, str, str] = NOBODY


def each(side: list, stage: str) -> Iterator[tuple[dict, tuple[int, str]]]:
    """Every tensor of a stage on one side: the dictionary that holds it, and its place."""
    yield from [(tensors, place) for tensors in side for place in tensors if place[1] == stage]


def values(change: Callable[[np.ndarray], np.ndarray], stage: str) -> Callable[[Pair], None]:
    """Change the values of a stage throughout the run; stored in float32, so that the change is exact."""

    def plant(pair: Pair) -> None:
        for tensors, place in each(pair.run, stage):
            exact = tensors[place].dtype.kind in "iu"
            tensors[place] = change(tensors[place] if exact else tensors[place].astype(np.float32))

    return plant


def element(stage: str, value: float, index: tuple[int, ...] = (0, 7)) -> Callable[[Pair], None]:
    """One element of one tensor of the run, in the run's own dtype."""

    def plant(pair: Pair) -> None:
        tensors, place = next(each(pair.run, stage))
        tensors[place][index] = value

    return plant


def drop(stage: str, variants: tuple[str, ...] = ("float32", "bfloat16", "run"), declared: bool = True) -> Callable[[Pair], None]:
    """Take a stage's tensors out of these variants, and out of the declared list too where asked."""

    def plant(pair: Pair) -> None:
        sides = pair.golden | {"run": pair.run}
        for variant in variants:
            for tensors, place in each(sides.get(variant, []), stage):
                del tensors[place]
        if not declared:
            (pair.run_stages if variants == ("run",) else pair.golden_stages).remove(stage)

    return plant


GOLDEN, RUN = ("float32", "bfloat16"), ("run",)


def rename(stage: str, to: str, golden: bool) -> Callable[[Pair], None]:
    """Another name on one side, in the list and on the tensors."""

    def plant(pair: Pair) -> None:
        for side in pair.golden.values() if golden else [pair.run]:
            for tensors, place in each(side, stage):
                tensors[place[0], to] = tensors.pop(place)
        stages = pair.golden_stages if golden else pair.run_stages
        stages[stages.index(stage)] = to

    return plant


def add(stage: str, like: str, golden: bool) -> Callable[[Pair], None]:
    """One stage more on one side."""

    def plant(pair: Pair) -> None:
        for side in pair.golden.values() if golden else [pair.run]:
            for tensors, place in each(side, like):
                tensors[place[0], stage] = tensors[place]
        (pair.golden_stages if golden else pair.run_stages).append(stage)

    return plant


def golden(change: Callable[[np.ndarray], np.ndarray], stage: str, variants=GOLDEN) -> Callable[[Pair], None]:
    """Change the golden's side of a stage; with `run`, all sides alike."""

    def plant(pair: Pair) -> None:
        sides = pair.golden | {"run": pair.run}
        for variant in variants:
            for tensors, place in each(sides[variant], stage):
                tensors[place] = change(tensors[place])

    return plant


def swap(stage: str, first: tuple[int, int], second: tuple[int, int]) -> Callable[[Pair], None]:
    """Exchange two tensors of the run, by (prompt, round)."""

    def plant(pair: Pair) -> None:
        (p, r), (q, s) = first, second
        pair.run[p][r, stage], pair.run[q][s, stage] = pair.run[q][s, stage], pair.run[p][r, stage]

    return plant


def instead(stage: str, place: tuple[int, int], source: tuple[int, int, str]) -> Callable[[Pair], None]:
    """One tensor of the run is another one of its tensors."""

    def plant(pair: Pair) -> None:
        prompt, round_, other = source
        pair.run[place[0]][place[1], stage] = pair.run[prompt][round_, other].copy()

    return plant


def noise(stage: str, times: float, row: int | None = None, row_times: float = 1.0) -> Callable[[Pair], None]:
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
    """Twice the noise everywhere, and one logit off by a thousand standard deviations of it."""
    noise(LOGITS, 2.0)(pair)
    tensors, place = next(each(pair.run, LOGITS))
    true = pair.golden["float32"][0][place]
    tensors[place][0, 777] += 1000 * np.sqrt(np.mean((tensors[place] - true) ** 2))


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


def head(x: np.ndarray) -> np.ndarray:
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


STRUCTURE = (
    Defect("golden stage missing", drop(Q, GOLDEN), Q, "missing", peers=('exit 0, "Passed"', "exit 0, not listed", "-")),
    Defect("golden stage missing and undeclared", drop(Q, GOLDEN, declared=False), Q, "surplus", peers=('exit 0, "Passed"', "exit 0, not listed", "-")),
    Defect("stage missing from the run", drop(Q, RUN), Q, "missing"),
    Defect("stage missing from the run and undeclared", drop(Q, RUN, declared=False), Q, "missing"),
    Defect("stage renamed in the run", rename(Q, "target.layers.0.query", False), Q, "missing", peers=("fuzzy match, exit 0", "skipped, exit 0", "-")),
    Defect("stage renamed in the golden", rename(Q, "target.layers.0.query", True), Q, "surplus", peers=("fuzzy match, exit 0", "skipped, exit 0", "-")),
    Defect("stage of another layer's name in the run", rename(Q, "target.layers.1.q", False), Q, "missing"),
    Defect("extra stage in the run", add("target.layers.1.q", Q, False), "target.layers.1.q", "surplus", peers=("fuzzy match, exit 0", "skipped, exit 0", "-")),
    Defect("extra stage in the golden", add("target.layers.1.q", Q, True), "target.layers.1.q", "missing", peers=("fuzzy match, exit 0", "skipped, exit 0", "-")),
    Defect("a round not recorded", lost_round, OUT, "missing"),
    Defect("rows truncated", values(lambda x: x[:-1], OUT), OUT, "shape"),
    Defect("one row too many", values(lambda x: np.concatenate([x, x[-1:]]), OUT), OUT, "shape"),
    Defect("no rows at all", values(lambda x: x[:0], OUT), OUT, "empty"),
    Defect("wrong dtype: float16", values(lambda x: x.astype(np.float16), OUT), OUT, "dtype"),
    Defect("wrong dtype: ids as floats", values(lambda x: x.astype(np.float32), TOKENS), TOKENS, "dtype"),
    Defect("transposed axes", transposed, Q, "axes"),
    Defect("axes relabelled", relabelled, Q, "axes"),
    Defect("duplicated prompt", instead(OUT, (1, 0), (0, 0, OUT)), OUT, "shape"),
    Defect("one bit of a shard flipped on disk", flipped_bit, "verify.logits", "digest"),
)

EVIDENCE = (
    Defect("noise floor missing", drop(Q, ("bfloat16",)), Q, "missing"),
    Defect("noise floor of another shape", golden(lambda x: x[:-1], Q, ("bfloat16",)), Q, "shape"),
    Defect("noise floor unrelated", golden(unrelated, Q, ("bfloat16",)), Q, "evidence"),
    Defect("NaN in the noise floor", golden(lambda x: np.where(x == x.flat[9], np.nan, x).astype(x.dtype), Q, ("bfloat16",)), Q, "non-finite"),
    Defect("NaN on both sides", golden(lambda x: np.where(np.arange(x.size).reshape(x.shape) == 9, np.nan, x).astype(x.dtype), Q, (*GOLDEN, "run")), Q, "non-finite"),
    Defect("golden all zero, and the device too", golden(np.zeros_like, Q, (*GOLDEN, "run")), Q, "evidence"),
    Defect("golden constant", golden(lambda x: np.full_like(x, 0.5), Q, (*GOLDEN, "run")), Q, "evidence"),
    Defect("over-quiet device: the golden copied", copied, FFN, "evidence"),
)

VALUES = (
    Defect("one NaN", element(FFN, np.nan), FFN, "non-finite", peers=("caught", "-", '"pass" where statistics look clean')),
    Defect("one Inf", element(FFN, np.inf), FFN, "non-finite"),
    Defect("all zero", values(np.zeros_like, FFN), FFN, "constant"),
    Defect("constant", values(lambda x: np.full_like(x, 0.5), FFN), FFN, "constant"),
    Defect("scale 1.001", values(lambda x: x * np.float32(1.001), OUT), OUT, "scale"),
    Defect("scale 1.001 at a projection", values(lambda x: x * np.float32(1.001), Q), Q, "scale"),
    Defect("scale 1.04", values(lambda x: x * np.float32(1.04), OUT), OUT, "l2", peers=("-", "4 % passes", "-")),
    Defect("scale 1.2", values(lambda x: x * np.float32(1.2), OUT), OUT, "l2", peers=("cosine mode passes", "-", "-")),
    Defect("bias of 0.1 % of the RMS", values(lambda x: x + np.float32(0.001 * np.sqrt(np.mean(x**2))), OUT), OUT, "bias"),
    Defect("negated", values(np.negative, OUT), OUT, "l2"),
    Defect("unrelated tensor", values(unrelated, OUT), OUT, "l2", peers=("exit 1", "exit 1", '"error" row, exit 0')),
    Defect("one random row in 2,000", values(one_row, Q), Q, "worst_row", LONG, ("-", "exit 0", "-")),
    Defect("one 1000-sigma outlier among 200,000 logits, the rest at twice the noise", outlier, LOGITS, "largest", WIDE),
    Defect("one bad token of 200 at 6x noise, the rest at 0.6x", noise(FFN, 0.6, row=33, row_times=6.0), FFN, "worst_row"),
    Defect("four times the noise", noise(FFN, 4.0), FFN, "l2"),
    Defect("one exponent bit flipped in memory", flipped_exponent, OUT, "largest"),
    Defect("rows shifted by one", values(lambda x: np.roll(x, 1, axis=0), OUT), OUT, "l2"),
    Defect("swapped rounds", swap(OUT, (0, 1), (0, 2)), OUT, "worst_row"),
    Defect("swapped prompts", swap(OUT, (0, 1), (1, 1)), OUT, "worst_row"),
    Defect("stale: the previous round's tensor", instead(OUT, (0, 2), (0, 1, OUT)), OUT, "worst_row"),
    Defect("another stage's tensor", instead(FFN, (0, 1), (0, 1, OUT)), FFN, "worst_row"),
    Defect("swapped heads", values(lambda x: x[:, [1, 0, *range(2, N)]], Q), Q, "l2"),
    Defect("one head wrong", values(head, Q), Q, "l2"),
    Defect("transposed data in the right shape", values(lambda x: x.transpose(0, 2, 1).reshape(-1, N, D), Q), Q, "l2"),
    Defect("two columns exchanged", values(column_pair, FFN), FFN, "l2"),
    Defect("cache off by one row", values(lambda x: np.roll(x, 1, axis=0), KEYS), KEYS, "l2"),
    Defect("rollback clears an old cache row", damaged_cache, KEYS, "worst_row"),
)

CHOICES = (
    Defect("shifted positions", values(lambda x: x + 1, "drafter.positions"), "drafter.positions", "choices"),
    Defect("slots exchanged", values(lambda x: x[::-1].copy(), "drafter.slots"), "drafter.slots", "choices"),
    Defect("one token another one", element(TOKENS, 3, (2,)), TOKENS, "choices"),
    Defect("experts off by one", values(lambda x: (x + 1) % 8, EXPERTS), EXPERTS, "choices"),
    Defect("draft tokens without d2t", values(lambda x: x - 300, "drafter.draft_tokens"), "drafter.draft_tokens", "choices"),
    Defect("acceptance length counts the bonus twice", values(lambda x: x + 1, "accept.length"), "accept.length", "choices"),
    Defect("cache length one short", values(lambda x: x - 1, "kv.target.length"), "kv.target.length", "choices"),
)

DEFECTS = (*STRUCTURE, *EVIDENCE, *VALUES, *CHOICES)
