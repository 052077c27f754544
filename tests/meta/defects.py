"""The planted defects: what each changes, the stage and the kind that have to be named, and who lets it pass.

A kind is a structural finding's, a bound's statistic, `choices` (a wrong id), `evidence` (inconclusive: a pass
would rest on nothing) or `digest` (unreadable input).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.meta import plants as p
from tests.meta.dumps import Pair
from tests.meta.plants import DRAFTS, EXPERTS, FFN, GOLDEN, KEYS, LOGITS, OUT, POSITIONS, RUN, TOKENS, Q, values
from tests.meta.worlds import LONG, SHORT, WIDE, N, Size

NOBODY = ("-", "-", "-")
NEXT_Q, LENGTH = "target.layers.1.q", "accept.length"
CLEAN = '"pass" where statistics look clean'
MISSED = ('exit 0, "Passed"', "exit 0, not listed", "-")
FUZZY = ("fuzzy match, exit 0", "skipped, exit 0", "-")


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


STRUCTURE = (
    Defect("golden stage missing", p.drop(Q, GOLDEN), Q, "missing", peers=MISSED),
    Defect("golden stage missing and undeclared", p.drop(Q, GOLDEN, declared=False), Q, "surplus", peers=MISSED),
    Defect("stage missing from the run", p.drop(Q, RUN), Q, "missing"),
    Defect("stage missing from the run and undeclared", p.drop(Q, RUN, declared=False), Q, "missing"),
    Defect("stage renamed in the run", p.rename(Q, "target.layers.0.query", False), Q, "missing", peers=FUZZY),
    Defect("stage renamed in the golden", p.rename(Q, "target.layers.0.query", True), Q, "surplus", peers=FUZZY),
    Defect("stage of another layer's name in the run", p.rename(Q, NEXT_Q, False), Q, "missing"),
    Defect("extra stage in the run", p.add(NEXT_Q, Q, False), NEXT_Q, "surplus", peers=FUZZY),
    Defect("extra stage in the golden", p.add(NEXT_Q, Q, True), NEXT_Q, "missing", peers=FUZZY),
    Defect("a round not recorded", p.lost_round, OUT, "missing"),
    Defect("rows truncated", values(lambda x: x[:-1], OUT), OUT, "shape"),
    Defect("one row too many", values(lambda x: np.concatenate([x, x[-1:]]), OUT), OUT, "shape"),
    Defect("no rows at all", values(lambda x: x[:0], OUT), OUT, "empty"),
    Defect("wrong dtype: float16", values(lambda x: x.astype(np.float16), OUT), OUT, "dtype"),
    Defect("wrong dtype: ids as floats", values(lambda x: x.astype(np.float32), TOKENS), TOKENS, "dtype"),
    Defect("transposed axes", p.transposed, Q, "axes"),
    Defect("axes relabelled", p.relabelled, Q, "axes"),
    Defect("duplicated prompt", p.instead(OUT, (1, 0), (0, 0, OUT)), OUT, "shape"),
    Defect("one bit of a shard flipped on disk", p.flipped_bit, "verify.logits", "digest"),
)

EVIDENCE = (
    Defect("noise floor missing", p.drop(Q, ("bfloat16",)), Q, "missing"),
    Defect("noise floor of another shape", p.golden(lambda x: x[:-1], Q, ("bfloat16",)), Q, "shape"),
    Defect("noise floor unrelated", p.golden(p.unrelated, Q, ("bfloat16",)), Q, "evidence"),
    Defect("NaN in the noise floor", p.golden(p.with_nan, Q, ("bfloat16",)), Q, "non-finite"),
    Defect("NaN on both sides", p.golden(p.with_nan, Q, (*GOLDEN, "run")), Q, "non-finite"),
    Defect("Inf on all sides", p.golden(p.with_inf, Q, (*GOLDEN, "run")), Q, "non-finite"),
    Defect("Inf in golden and run", p.golden(p.with_inf, Q, ("float32", "run")), Q, "non-finite"),
    Defect("Inf in the noise floor", p.golden(p.with_inf, Q, ("bfloat16",)), Q, "non-finite"),
    Defect("golden all zero, and the device too", p.golden(np.zeros_like, Q, (*GOLDEN, "run")), Q, "evidence"),
    Defect("golden constant", p.golden(lambda x: np.full_like(x, 0.5), Q, (*GOLDEN, "run")), Q, "evidence"),
    Defect("over-quiet device: the golden copied", p.copied, FFN, "evidence"),
)

VALUES = (
    Defect("one NaN", p.element(FFN, np.nan), FFN, "non-finite", peers=("caught", "-", CLEAN)),
    Defect("one Inf", p.element(FFN, np.inf), FFN, "non-finite"),
    Defect("all zero", values(np.zeros_like, FFN), FFN, "constant"),
    Defect("constant", values(lambda x: np.full_like(x, 0.5), FFN), FFN, "constant"),
    Defect("scale 1.001", values(lambda x: x * np.float32(1.001), OUT), OUT, "scale"),
    Defect("scale 1.001 at a projection", values(lambda x: x * np.float32(1.001), Q), Q, "scale"),
    Defect("scale 1.04", values(lambda x: x * np.float32(1.04), OUT), OUT, "l2", peers=("-", "4 % passes", "-")),
    Defect("scale 1.2", values(lambda x: x * np.float32(1.2), OUT), OUT, "l2", peers=("cosine mode passes", "-", "-")),
    Defect("bias of 0.1 % of the RMS", values(p.biased, OUT), OUT, "bias"),
    Defect("negated", values(np.negative, OUT), OUT, "l2"),
    Defect("unrelated tensor", values(p.unrelated, OUT), OUT, "l2", peers=("exit 1", "exit 1", '"error" row, exit 0')),
    Defect("one random row in 2,000", values(p.one_row, Q), Q, "worst_row", LONG, ("-", "exit 0", "-")),
    Defect("one 1000-sigma outlier of 200,000 logits, the rest at twice the noise", p.outlier, LOGITS, "largest", WIDE),
    Defect("one bad token of 200 at 6x noise, the rest at 0.6x", p.noise(FFN, 0.6, 33, 6.0), FFN, "worst_row"),
    Defect("four times the noise", p.noise(FFN, 4.0), FFN, "l2"),
    Defect("one exponent bit flipped in memory", p.flipped_exponent, OUT, "largest"),
    Defect("rows shifted by one", values(lambda x: np.roll(x, 1, axis=0), OUT), OUT, "l2"),
    Defect("swapped rounds", p.swap(OUT, (0, 1), (0, 2)), OUT, "worst_row"),
    Defect("swapped prompts", p.swap(OUT, (0, 1), (1, 1)), OUT, "worst_row"),
    Defect("stale: the previous round's tensor", p.instead(OUT, (0, 2), (0, 1, OUT)), OUT, "worst_row"),
    Defect("another stage's tensor", p.instead(FFN, (0, 1), (0, 1, OUT)), FFN, "worst_row"),
    Defect("swapped heads", values(lambda x: x[:, [1, 0, *range(2, N)]], Q), Q, "l2"),
    Defect("one head wrong", values(p.one_head, Q), Q, "l2"),
    Defect("transposed data in the right shape", values(p.misread, Q), Q, "l2"),
    Defect("two columns exchanged", values(p.column_pair, FFN), FFN, "l2"),
    Defect("cache off by one row", values(lambda x: np.roll(x, 1, axis=0), KEYS), KEYS, "l2"),
    Defect("rollback clears an old cache row", p.damaged_cache, KEYS, "worst_row"),
)

CHOICES = (
    Defect("shifted positions", values(lambda x: x + 1, POSITIONS), POSITIONS, "choices"),
    Defect("slots exchanged", values(lambda x: x[::-1].copy(), "drafter.slots"), "drafter.slots", "choices"),
    Defect("one token another one", p.element(TOKENS, 3, (2,)), TOKENS, "choices"),
    Defect("experts off by one", values(lambda x: (x + 1) % 8, EXPERTS), EXPERTS, "choices"),
    Defect("draft tokens without d2t", values(lambda x: x - 300, DRAFTS), DRAFTS, "choices"),
    Defect("acceptance length counts the bonus twice", values(lambda x: x + 1, LENGTH), LENGTH, "choices"),
    Defect("cache length one short", values(lambda x: x - 1, "kv.target.length"), "kv.target.length", "choices"),
)

DEFECTS = (*STRUCTURE, *EVIDENCE, *VALUES, *CHOICES)
