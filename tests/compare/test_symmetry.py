"""Two devices compared: the same evidence gives the same verdict and figures, whichever is named first."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare.between import DeviceDifference, compare_devices
from parity.policy import read_policy
from tests.meta import plants as p
from tests.meta.dumps import Pair, clean, write
from tests.meta.worlds import Size

SMALL = Size(prompts=(40, 12))
DRAFTS, SCORES = "drafter.draft_tokens", "drafter.logits"


def nothing(pair: Pair) -> None:
    """A clean device."""


def close(pair: Pair) -> np.ndarray:
    """The golden's second best draft of one row is nearly its best; the columns of that row, the best first."""
    where = 1, SCORES
    for side in (pair.golden["float32"][0], pair.golden["bfloat16"][0], pair.run[0]):
        scores = side[where].astype(np.float32)
        best = np.argsort(-pair.golden["float32"][0][where][0])[:3]
        scores[0, best[1:]] = scores[0, best[0]] * np.float32(0.999)
        side[where] = scores.astype(side[where].dtype)
    return best


def drafting(number: int):
    """The device drafts the golden's best, second or third of that row, from logits that say so."""

    def plant(pair: Pair) -> None:
        best = close(pair)
        scores = pair.run[0][1, SCORES]
        scores[0, best[number]] = scores[0].max() + scores.dtype.type(0.03)
        pair.run[0][1, DRAFTS][0] = best[number] + 300

    return plant


def scaled(pair: Pair) -> None:
    p.values(lambda x: x * np.float32(1.001), p.OUT)(pair)


def ahead(pair: Pair) -> None:
    p.values(lambda x: x * np.float32(2), p.OUT)(pair)


def zeros(pair: Pair) -> None:
    p.values(np.zeros_like, p.OUT)(pair)


def others(pair: Pair) -> None:
    p.values(lambda x: (x + 1) % 8, p.EXPERTS)(pair)
    p.values(lambda x: x + 1, p.POSITIONS)(pair)


def token(id_: int):
    return p.element(p.TOKENS, id_, (2,))


RUNS = [
    (nothing, nothing, "bfloat16"),
    (nothing, drafting(1), "bfloat16"),
    (drafting(1), drafting(2), "bfloat16"),
    (token(3), token(9), "bfloat16"),
    (token(-1), token(10**6), "bfloat16"),
    (scaled, nothing, "bfloat16"),
    (zeros, nothing, "bfloat16"),
    (others, token(3), "bfloat16"),
    (ahead, nothing, "pcc"),
    (zeros, ahead, "torch-testing"),
]


def both_ways(tmp_path, one, other, policy):
    """Both comparisons of two planted runs over the same golden."""
    pairs = [clean(SMALL), clean(SMALL)]
    for pair, plant in zip(pairs, (one, other), strict=True):
        if one is not nothing or other is not nothing:
            close(pair)
        plant(pair)
    runs = [write(pair, tmp_path / str(number)) for number, pair in enumerate(pairs)]
    golden, rules = runs[0][0], read_policy(policy, "bfloat16")
    mine, theirs = (run for _, run in runs)
    return [
        compare_devices(golden, DeviceDifference(golden, *order), rules) for order in ((mine, theirs), (theirs, mine))
    ]


@pytest.mark.parametrize(("one", "other", "policy"), RUNS)
def test_the_order_of_two_devices_does_not_matter(one, other, policy, tmp_path):
    ways = both_ways(tmp_path, one, other, policy)
    told = [[(s.stage, s.verdict, s.choices, s.largest_regret, s.topk) for s in way.stages] for way in ways]
    assert told[0] == told[1]
    for mine, theirs in zip(*(way.stages for way in ways), strict=True):
        assert mine.x == pytest.approx(theirs.x, rel=1e-9), mine.stage
    assert ways[0].verdict == ways[1].verdict
    assert ways[0].first == ways[1].first
    assert {(f.kind, f.stage) for f in ways[0].findings} == {(f.kind, f.stage) for f in ways[1].findings}


@pytest.mark.parametrize("number", [1, 2])
def test_a_draft_within_noise_is_no_bug_of_either_device(number, tmp_path):
    for way in both_ways(tmp_path, nothing, drafting(number), "bfloat16"):
        found = next(stage for stage in way.stages if stage.stage == DRAFTS)
        assert found.choices["bug"] == 0 and found.choices["same"] < found.rows, found
