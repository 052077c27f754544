"""The floor that only tightens."""

from __future__ import annotations

import json
import tomllib
from functools import partial

import numpy as np
import pytest

from parity.errors import Inconclusive, UsageError
from parity.history import append, load
from parity.history.ratchet import CALIBRATED, MARGIN, labelled, looser, proposals, tightened
from parity.policy import Policy, read_policy, shipped
from tests.history.synthetic import cells, night, results, world
from tests.history.test_verdicts import flat

CELL = cells(1)[0]
MINE = """# Mine.
name = "bfloat16"

[[row]]
stages = "drafter.*"
modes = ["local"]
judge = "noise"
l2 = { ok = 2.5, warn = 3.0 }  # generous
worst_row = { ok = 4.0, warn = 4.0 }
scale = { ok = 5.0, warn = 5.0 }
reason = "A row with comments."

[[row]]
stages = "*"
judge = "noise"
# Not to be touched: already low.
l2 = { ok = 1.28, warn = 3.0 }
reason = "All the rest."
"""


def quiet(nights: int):
    """Clean figures, well below their bounds."""
    made = flat(nights)
    level = {"l2": 0.9, "worst_row": 1.5, "scale": 0.3, "bias": 0.2, "relative": 0.0, "over_baseline": 1.4}
    made.values[:] = [level[key[3]] for key in made.keys]
    return made


def written(made, folder) -> str:
    """History of a made-up world, by URL."""
    for number in range(made.nights):
        append(str(folder / "h"), night(made, number), results(made, number))
    return str(folder / "h")


@pytest.fixture
def recorded(tmp_path):
    """History of a made-up world of the test's own, by URL."""
    return partial(written, folder=tmp_path)


@pytest.fixture(scope="module")
def quiet_nights(tmp_path_factory) -> str:
    """History of fourteen quiet nights, by URL: read, and never written to."""
    return written(quiet(14), tmp_path_factory.mktemp("quiet"))


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(MINE)
    return file


def by_name(found):
    return {(one.stages, one.statistic): one for one in found}


def test_lower_bounds_are_proposed_with_their_reason(quiet_nights, mine):
    found = by_name(proposals(read_policy(mine, ""), load(quiet_nights)))
    l2, row = found["drafter.*", "l2"], found["drafter.*", "worst_row"]
    assert (l2.new, l2.largest, l2.nights) == (MARGIN, 0.9, 14) and "noise floor" in l2.why
    assert row.new == pytest.approx(1.1 * CALIBRATED["worst_row"]["local"], abs=0.01) and "calibrated" in row.why
    assert not found["*", "l2"].tighter and not found["drafter.*", "scale"].tighter


def test_it_never_loosens(recorded):
    """Whatever the bounds are and however near clean values come, no proposal is above the old bound."""
    made = quiet(14)
    made.values[:] *= 1.6
    frame = load(recorded(made))
    for ok in (0.01, 0.5, 1.2, 1.3, 2.0, 9.0):
        rows = [
            {
                "stages": "*",
                "judge": "noise",
                "reason": "because it must be",
                "l2": {"ok": ok, "warn": 10},
                "worst_row": {"ok": ok, "warn": ok},
            }
        ]
        policy = Policy.model_validate({"name": "bfloat16", "row": rows})
        assert all(one.new <= one.old for one in proposals(policy, frame))


def test_no_bound_goes_below_the_noise_or_the_calibration(recorded):
    made = quiet(14)
    made.values[:] *= 0.01
    policy = read_policy("bfloat16", "")
    for one in proposals(policy, load(recorded(made))):
        if one.tighter:
            assert one.new >= max(MARGIN, *CALIBRATED[one.statistic].values())


def test_few_nights_and_unclean_nights_are_not_enough(recorded, mine):
    made = quiet(14)
    made.verdicts[5, CELL] = "warn"
    frame = load(recorded(made))
    found = proposals(read_policy(mine, ""), frame)
    assert not any(one.tighter for one in found)
    assert by_name(found)["drafter.*", "l2"].why == "1 more clean nights are needed"
    with pytest.raises(UsageError, match="14 nights at the least"):
        proposals(read_policy(mine, ""), frame, nights=5)


def test_nothing_is_proposed_while_a_regression_stands(recorded, mine):
    made = quiet(30)
    made.values[16:, made.column(CELL, "drafter.fc_out", "local", "l2")] = 1.1
    with pytest.raises(Inconclusive, match="while a regression stands"):
        proposals(read_policy(mine, ""), load(recorded(made)))


def test_a_calibration_of_ones_own_counts(quiet_nights, mine, tmp_path):
    frame = load(quiet_nights)
    file = tmp_path / "calibration.json"
    families = [
        {
            "family": "drafter.fc_out",
            "mode": "local",
            "margins": {"l2": {"largest": 1.8}, "worst_row": {"largest": 3.9}},
        }
    ]
    file.write_text(json.dumps({"families": families}))
    found = by_name(proposals(read_policy(mine, ""), frame, calibration=file))
    assert found["drafter.*", "l2"].new == pytest.approx(1.98)
    assert not found["drafter.*", "worst_row"].tighter
    file.write_text("[]")
    with pytest.raises(UsageError, match="no result of"):
        proposals(read_policy(mine, ""), frame, calibration=file)


def test_the_new_policy_keeps_its_comments(quiet_nights, mine):
    found = proposals(read_policy(mine, ""), load(quiet_nights))
    text = tightened(MINE, found)
    assert (
        text.replace("ok = 1.25", "ok = 2.5").replace("{ ok = 2.01, warn = 2.01 }", "{ ok = 4.0, warn = 4.0 }") == MINE
    )
    assert tomllib.loads(text)["row"][0]["l2"] == {"ok": 1.25, "warn": 3.0}


def test_another_label_is_inconclusive(recorded):
    with pytest.raises(Inconclusive, match="no cell under policy float32, but bfloat16"):
        labelled(load(recorded(quiet(1))), "float32")


def test_looser_bounds_are_found_whatever_row_sets_them(recorded):
    frame, before = load(recorded(quiet(1))), read_policy("bfloat16", "")
    text = shipped()["bfloat16"].read_text()
    row = '[[row]]\nstages = "drafter.fc_out"\njudge = "noise"\nl2 = { ok = 2.0, warn = 3.0 }\nreason = "before all"\n'
    head, *rest = text.split("[[row]]")
    after = Policy.model_validate(tomllib.loads(head + row + "[[row]]".join(["", *rest])))
    found = list(looser(after, before, frame))
    assert ("drafter.fc_out", "local", "l2", 1.5, 2.0) in found
    assert ("drafter.fc_out", "local", "bias", 5.0, np.inf) in found
    assert {stage for stage, *_ in found} == {"drafter.fc_out"}
    assert list(looser(before, before, frame)) == []


def test_the_command_writes_checks_and_refuses(quiet_nights, mine, parity, tmp_path):
    url, new = quiet_nights, tmp_path / "new.toml"
    assert parity("ratchet", mine, url, "--out", new).code == 0
    assert parity("ratchet", mine, url, "--check").code == 1
    found = parity("ratchet", new, url, "--check", "--against", mine)
    assert (found.code, found.last) == (0, "0 bounds could be lower, 0 are looser than before")
    found = parity("ratchet", mine, url, "--check", "--against", new)
    assert found.code == 1 and "loosened: l2 of drafter.fc_out (local) from 1.25 to 2.5" in found.out
    found = parity("ratchet", mine, url, "--label", "other")
    assert found.code == 3 and "--label" in found.err


def test_too_short_a_history_is_inconclusive(recorded, mine, parity):
    found = parity("ratchet", mine, recorded(world(1, 3, 1)))
    assert found.code == 3 and "no row has 14 clean nights" in found.last
