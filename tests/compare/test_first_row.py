"""A failure names the first row beyond its own bound, not the worst one, and what the bad rows have in common."""

from __future__ import annotations

import json

import numpy as np

from parity.compare import compare
from parity.policy import read_policy
from parity.reports.terminal import print_report
from tests.meta.dumps import clean, write
from tests.meta.plants import FFN, OUT, TOKENS, element, values
from tests.meta.worlds import Size

SMALL = Size(prompts=(60, 20))


def judged(tmp_path, *plants):
    pair = clean(SMALL)
    for plant in plants:
        plant(pair)
    return compare(*write(pair, tmp_path), read_policy(None, "bfloat16"))


def growing(x: np.ndarray) -> np.ndarray:
    """Rows from 32 of a pass on are off, each more than the one before."""
    rng = np.random.default_rng(5)
    share = np.maximum(np.arange(len(x)) - 31, 0)[:, None] * 0.05
    return x + share * rng.normal(size=x.shape).astype(np.float32) * np.sqrt(np.mean(x**2))


def test_the_first_row_beyond_its_bound_is_named_beside_the_worst(tmp_path, capsys):
    report = judged(tmp_path, values(growing, FFN))
    found = next(stage for stage in report.stages if stage.stage == FFN)
    assert report.first == found.first and (found.first.position, found.bad_rows) == (32, 28)
    assert found.worst.position > 50
    assert found.relation == "from position 32 on, in prefill rows"
    print_report(report)
    last = " ".join(capsys.readouterr().out.split("chained verdict")[-1].split())
    assert "position 32" in last and f"worst at prompt 0, round 0, position {found.worst.position}" in last
    assert "28 of" in last and found.relation in last
    assert json.loads(json.dumps(report.to_dict()))["stages"][0]["relation"] == ""


def test_the_row_of_a_wrong_choice_is_told_like_that_of_a_wrong_number(tmp_path):
    found = next(stage for stage in judged(tmp_path, element(TOKENS, 3, (2,))).stages if stage.stage == TOKENS)
    assert (
        found.bad_rows == 1
        and found.first == found.worst
        and found.relation == "too few rows (1 bad of 30) to tell a condition"
    )


def test_a_stage_that_is_off_as_a_whole_has_no_bad_row(tmp_path):
    found = next(
        stage for stage in judged(tmp_path, values(lambda x: x * np.float32(1.001), OUT)).stages if stage.stage == OUT
    )
    assert found.verdict == "fail" and found.first is not None
    assert (found.bad_rows, found.relation) == (0, "")
