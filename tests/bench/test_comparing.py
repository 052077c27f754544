"""Two benches: the same, slower, of other machines, with a cell missing; and what is drawn of one."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from functools import cache

import numpy as np
import pytest

from parity.bench.compare import NOTHING, TOO_WIDE, compare_reports
from parity.bench.measure import run_bench
from parity.bench.records import read_bench
from parity.errors import UsageError
from parity.reports.bench_page import bench_page, put_between
from parity.reports.bench_plot import speed_up_plot
from tests.bench.fakes import COSTS, Fake, FakePlain, Ticks, request


@pytest.fixture(scope="module")
def measured(tiny):
    """A bench of devices with these costs, made once; every seed another day."""

    @cache
    def bench(seed, noise=0.02, ks=(1, 4), **costs):
        ticks, drawn = Ticks(), np.random.default_rng(seed)
        made = lambda k: FakePlain(  # noqa: E731
            ticks, k, costs=COSTS | costs, noise=lambda: float(drawn.lognormal(0, noise))
        )
        return run_bench(request(tiny, made, ticks, ks=ks, repeats=4))

    return bench


def said(found):
    return {(one.cell.rsplit("/", 2)[-2], one.cell[-2:], one.figure): one.said for one in found.figures}


def test_the_same_thing_twice_is_no_difference_shown(measured):
    found = compare_reports(measured(1), measured(2))
    assert set(said(found).values()) == {"no difference shown"} and found.exit_code == 0


def test_a_slower_round_is_a_regression_and_plain_decoding_is_none(measured):
    found = compare_reports(measured(1), measured(2, verify=1.3))
    assert found.exit_code == 1
    assert said(found)["speculative", "k4", "tokens/s"] == said(found)["speculative", "k4", "over plain"] == "slower"
    assert said(found)["plain", "k0", "tokens/s"] == "no difference shown"


def test_a_file_of_seconds_beyond_reason_is_refused(measured, tmp_path):
    kept = json.loads(measured(1).model_dump_json())
    kept["cells"][0]["turns"][0]["decode"] = 1e308
    (tmp_path / "huge.json").write_text(json.dumps(kept))
    with pytest.raises(UsageError, match=r"no file of `parity bench --json`: .*decode"):
        read_bench(tmp_path / "huge.json")


def test_a_faster_one_passes(measured):
    found = compare_reports(measured(1), measured(2, verify=0.7))
    assert found.exit_code == 0 and said(found)["speculative", "k4", "over plain"] == "faster"


def test_a_slower_machine_shows_in_the_rates_and_not_in_the_ratios(measured):
    slower = {name: 1.5 * seconds for name, seconds in COSTS.items()}
    found = said(compare_reports(measured(1), measured(2, **slower)))
    assert found["speculative", "k4", "tokens/s"] == "slower"
    assert found["speculative", "k4", "over plain"] == "no difference shown"


def test_a_cell_that_only_one_has_is_missing_evidence(measured):
    found = compare_reports(measured(1), measured(2, ks=(4,)))
    assert found.exit_code == 3 and "only the first bench has it" in found.missing[0]


def test_benches_of_other_machines_or_cases_are_refused_unless_told(measured):
    first = measured(1)
    machine = first.machine.model_copy(update={"processor": "another"})
    case = first.case.model_copy(update={"max_new_tokens": 5})
    for other, why in (({"machine": machine}, "processors"), ({"case": case}, "token budgets")):
        second = first.model_copy(update=other)
        with pytest.raises(UsageError, match=rf"not comparable: they are of other {why}.*--anyway"):
            compare_reports(first, second)
        assert why in compare_reports(first, second, anyway=True).differences[0]


def test_a_bench_whose_tokens_differ_is_no_pass_however_fast(measured):
    second = measured(2)
    cells = tuple(cell.model_copy(update={"parted": ("prompt 0 parts",)}) for cell in second.cells)
    assert compare_reports(measured(1), second.model_copy(update={"cells": cells})).exit_code == 1


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_run_of_no_time_is_refused(seconds, measured):
    report = measured(1)
    first, *others = report.cells
    turn = first.turns[0].model_copy(update={"decode": seconds})
    cell = first.model_copy(update={"turns": (turn, *first.turns[1:])})
    with pytest.raises(UsageError, match=r"^the second bench, .*: a run decoded in no time or less"):
        compare_reports(report, report.model_copy(update={"cells": (cell, *others)}))


def test_one_run_shows_no_difference_and_is_no_pass(tiny):
    ticks = Ticks()
    once = run_bench(request(tiny, lambda k: FakePlain(ticks, k), ticks, repeats=1))
    found = compare_reports(once, once)
    assert found.exit_code == 3 and {one.why for one in found.figures} == {"one run, no spread"}


def test_the_drawing_is_svg_with_a_curve_for_each_device(measured):
    drawing = ElementTree.fromstring(speed_up_plot(measured(1)))
    dashed = [one for one in drawing.iter() if one.get("stroke-dasharray") == "6 4"]
    assert len(dashed) == 1 and any("predicted" in (one.text or "") for one in drawing.iter())
    ElementTree.fromstring(speed_up_plot(measured(1).model_copy(update={"predictions": ()})))


def test_the_page_has_a_table_by_prompt_and_is_written_between_its_marks(measured):
    made = bench_page(measured(1))
    assert "| fake, speculative | 4 | " in made and "| prompt 0 | prompt 1 |" in made
    page = put_between("# Title\n\nWords.\n", made)
    again = put_between(page + "\nBehind.\n", "Other words.\n")
    assert again.startswith("# Title\n\nWords.\n") and again.endswith("\nBehind.\n")
    assert "Other words." in again and "prompt 0" not in again and put_between(again, "Other words.\n") == again


def test_a_failed_cell_stands_in_the_page(tiny):
    ticks = Ticks()
    made = bench_page(run_bench(request(tiny, lambda k: Fake(ticks, k), ticks, scenarios=("batch",))))
    assert "takes no lanes" in made


@pytest.mark.parametrize(
    ("first", "second", "code", "verdict"),
    [
        ("pass", "fail", 1, "fail"),
        ("pass", "inconclusive", 3, "inconclusive"),
        ("fail", "pass", 3, "inconclusive"),
        ("inconclusive", "pass", 3, "inconclusive"),
    ],
)
def test_what_a_bench_said_of_itself_is_said_and_is_no_pass(measured, first, second, code, verdict):
    """However alike their figures are: that of A is what B is compared with."""
    told = {"fail": "0.9x over plain", "inconclusive": "one prompt", "pass": ""}
    reports = [
        measured(1).model_copy(update={"verdict": one, "findings": (told[one],) if told[one] else ()})
        for one in (first, second)
    ]
    found = compare_reports(*reports)
    assert (found.exit_code, found.verdict) == (code, verdict)
    where, own = ("second", second) if second != "pass" else ("first", first)
    assert found.verdicts == (f"the {where} bench's own verdict is {own}: {told[own]}",)


def test_limits_that_hold_half_the_rate_are_no_pass(measured):
    found = compare_reports(measured(1, noise=0.5), measured(2, noise=0.5))
    assert found.exit_code == 3 and {one.why for one in found.figures} >= {TOO_WIDE}


@pytest.mark.parametrize("broken", [(0,), (1,), (0, 1)])
def test_a_cell_that_ended_with_an_error_is_missing_evidence_however_far_it_got(broken, measured):
    reports = [measured(1), measured(2)]
    for which in broken:
        *others, last = reports[which].cells
        cells = (*others, last.model_copy(update={"error": "it broke down"}))
        reports[which] = reports[which].model_copy(update={"cells": cells})
    found = compare_reports(*reports)
    assert found.exit_code == 3 and "it broke down" in found.missing[0]


@pytest.mark.parametrize("prompts", [1, 2])
def test_a_prompt_of_one_token_has_no_rate(prompts, measured):
    def cut(cell):
        groups = list(dict.fromkeys(turn.prompts for turn in cell.turns))[:prompts]
        one = {"tokens": (1,)}
        turns = (turn.model_copy(update=one if turn.prompts in groups else {}) for turn in cell.turns)
        return cell.model_copy(update={"turns": tuple(turns)})

    reports = [one.model_copy(update={"cells": tuple(map(cut, one.cells))}) for one in (measured(1), measured(2))]
    found = compare_reports(*reports)
    assert {one.ratio.groups if one.ratio else 0 for one in found.figures} == {2 - prompts}
    alone = compare_reports(measured(1), reports[1])
    assert alone.exit_code == 3 and f"decoded a token behind the first: {prompts}" in alone.missing[0]
    if prompts == 2:
        assert found.exit_code == 3 and {one.why for one in found.figures} == {NOTHING}
