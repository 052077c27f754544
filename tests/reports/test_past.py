"""What a page draws of history: lines with their band and their change."""

from __future__ import annotations

import pytest

from parity.reports.page.past import past_from
from tests.reports import nights
from tests.reports.nights import BEFORE, RED, SINCE, name, past, step, unpack
from tests.sample import by_night


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    return unpack(tmp_path_factory.mktemp("nights") / "night")


@pytest.fixture(scope="module")
def frame(night):
    return nights.history(night.results())


def trends(frame, night, *changes, bands=None):
    found = past_from(frame, changes, {}, night.night.name, [RED], bands)
    return {one.label: one for one in found.series[RED]}


def test_a_change_has_its_figures_line_from_the_first_night_to_tonight(night):
    (found,) = past(night, step()).worse
    assert found.first_stage == "drafter.taps" and found.series.dates == ("2026-11-01", "2026-11-21")
    assert len(found.series.values) == BEFORE + 1 and found.series.drawn.band is not None
    points = found.series.drawn.points
    assert points[SINCE - 1][0] < found.series.drawn.change < points[SINCE][0]


def test_a_change_of_what_no_stage_has_names_no_stage(night):
    (found,) = past(night, step(stage="cell", mode="", metric="passed")).worse
    assert found.first_stage == "" and found.series is None


def test_improvements_and_new_cells_are_quiet(night):
    found = past(night, step("improvement"), step("new"), step("gone"), step("drift"))
    assert [one.change.kind for one in found.quiet] == ["improvement", "new"] and len(found.worse) == 2


def test_the_stage_that_is_largest_tonight_stands_for_its_node(frame, night):
    found = trends(frame, night)
    assert found["drafter.taps, local, x noise"].values[-1] > 100 > 2 > found["drafter.taps, local, x noise"].values[0]
    layers = [label for label in found if label.startswith("target.layers.") and ", local" in label]
    assert len(layers) == 1 and "Acceptance length, tokens per round" in found


def test_a_figure_outside_its_band_says_so_and_left_it_with_the_cells_change(frame, night):
    bands = {(RED, "drafter.taps", "local", "l2"): (0.9, 1.1), (RED, "speed", "", "over_plain"): (0.0, 9.0)}
    change = step(stage="drafter.fc_out", mode="chained")
    found = trends(frame, night, change, bands=bands)
    taps, speed = found["drafter.taps, local, x noise"], found["Speed over plain decoding"]
    assert (taps.change, speed.change) == ("outside its band", "")
    assert taps.drawn.change is not None and speed.drawn.change is None and speed.drawn.band is not None


def test_a_figure_that_tonight_lacks_is_not_told_as_tonights(frame, night):
    lacking = frame[(frame["night"] != name(BEFORE)) | (frame["metric"] != "over_plain")]
    found = trends(lacking, night, bands={(RED, "speed", "", "over_plain"): (0.0, 0.1)})["Speed over plain decoding"]
    assert found.tonight is None and len(found.values) == BEFORE and found.change == ""


def test_later_nights_are_not_shown(frame, night):
    found = past_from(frame, (), {}, name(SINCE), [RED])
    assert found.nights == SINCE + 1 and all(len(one.values) <= SINCE + 1 for one in found.series[RED])


@by_night
def test_the_real_history_tells_a_step(parity, night, tmp_path):
    history = pytest.importorskip("parity.history", reason="history is a part of its own")
    url, red = str(tmp_path / "history"), [one for one in night.results() if one.verdict == "fail"]
    kept = red[0].model_copy(
        update={"metrics": tuple(one for one in red[0].metrics if one.stage in ("cell", "drafter.taps"))}
    )
    values = {"l2": 0.98, "passed": 1.0}
    calm = tuple(
        one.model_copy(update={"verdict": "pass", "value": values.get(one.name, one.value)}) for one in kept.metrics
    )
    for number in range(BEFORE + 1):
        clean = number < SINCE
        plan = night.night.model_copy(
            update={"name": name(number), "started": f"2026-11-{number + 1:02d}T02:00:00+00:00", "commit": f"c{number}"}
        )
        update = {"verdict": "pass", "metrics": calm} if clean else {}
        history.append(url, plan, [kept.model_copy(update=update)])
    ended = parity("report", night.path, "--history", url, "--markdown")
    assert "2026-11-18" in ended.out and "c16" in ended.out and "c17" in ended.out and "- **regression**" in ended.out
    parity("report", night.path, "--history", url, "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert 'class="band"' in page and "regression since 2026-11-18" in page
    ended = parity("report", night.path, "--history", str(tmp_path / "none"))
    assert ended.code == 2


def test_a_trend_needs_two_nights(frame, night):
    assert past_from(frame[frame["night"] == night.night.name], (), {}, night.night.name, [RED]).series[RED] == ()
    two = frame[frame["night"].isin([name(BEFORE - 1), night.night.name])]
    assert all(len(one.values) == 2 for one in past_from(two, (), {}, night.night.name, [RED]).series[RED])


def test_what_changed_comes_first_then_what_moved_furthest(frame, night):
    moved = frame.copy()
    tonight = (moved["night"] == night.night.name) & (moved["cell"] == RED)
    moved.loc[tonight & (moved["stage"] == "speed") & (moved["metric"] == "over_plain"), "value"] = 50.0
    found = past_from(moved, [step()], {}, night.night.name, [RED]).series[RED]
    assert [one.label for one in found[:2]] == ["drafter.taps, local, x noise", "Speed over plain decoding"]
    assert found[0].moves and found[1].moves and not found[-1].moves


def test_cells_that_changed_alike_are_one_event(night):
    other = [cell.name for cell in night.night.cells][1]
    found = past(night, step(), step(cell=other), step("gone", cell=other, stage="cell"))
    assert [[changed.change.cell for changed in event] for event in found.events] == [[RED, other], [other]]
    assert found.counted == "2 changed for the worse, 1 without evidence, 0 other changes"
