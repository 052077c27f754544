"""What happens to whole cells: a verdict that changed needs no band; missing evidence is told."""

from __future__ import annotations

from parity.history import append, load, verdicts
from tests.history.synthetic import World, cells, frame, night, results
from tests.history.test_verdicts import flat

CELL, OTHER = cells(2)


def changes(made: World, table=None, night: int | None = None):
    night = made.nights - 1 if night is None else night
    return verdicts(frame(made, night) if table is None else table, made.name(night))


def failing(made: World, since: int):
    """The cell fails from this night on, at one stage."""
    for number in range(since, made.nights):
        made.verdicts[number, CELL] = "fail"
    made.values[since:, made.column(CELL, "drafter.fc_out", "local", "l2")] = 9.0
    table = frame(made)
    bad = (table["cell"] == CELL) & (table["stage"] == "drafter.fc_out") & (table["value"] == 9.0)
    return table.assign(verdict=bad.map({True: "fail", False: "pass"}))


def test_a_cell_that_fails_on_the_second_night_is_told_with_its_first_stage():
    made = flat(2, 2)
    (found,) = changes(made, failing(made, 1))
    assert (found.kind, found.cell, found.stage, found.mode, found.metric) == (
        "regression",
        CELL,
        "drafter.fc_out",
        "local",
        "l2",
    )
    assert (found.since_date, found.commits, found.after) == (made.date(1), (made.commit(0), made.commit(1)), 9.0)
    assert "drafter.fc_out" in found.sentence and made.commit(1) in found.sentence


def test_another_device_behind_the_label_is_told():
    made = flat(2, 2)
    table = failing(made, 1)
    planted = (table["cell"] == CELL) & (table["night"] == made.name(1))
    table = table.assign(device_spec=planted.map({True: "parity.device.faults:tap_off_by_one", False: "numpy"}))
    (found,) = changes(made, table)
    assert found.sentence.endswith("; device was numpy, is parity.device.faults:tap_off_by_one")


def test_it_is_told_as_long_as_it_fails_and_once():
    made = flat(30, 2)
    (found,) = changes(made, failing(made, 15))
    assert (found.kind, found.since_date, found.nights) == ("regression", made.date(15), 15)


def test_a_cell_that_always_failed_did_not_change():
    made = flat(3, 2)
    table = failing(made, 0)
    assert changes(made, table) == []


def test_a_cell_that_passes_again_is_an_improvement():
    made = flat(4, 1)
    made.verdicts[1, CELL] = made.verdicts[2, CELL] = "fail"
    (found,) = changes(made)
    assert (found.kind, found.since_date) == ("improvement", made.date(3))


def test_a_cell_without_a_verdict_is_broken_since_its_date():
    made = flat(6, 2)
    for number in (3, 4, 5):
        made.verdicts[number, OTHER] = "inconclusive"
    (found,) = changes(made)
    assert (found.kind, found.cell, found.since_date, found.commits) == (
        "broken",
        OTHER,
        made.date(3),
        (made.commit(2), made.commit(3)),
    )


def test_a_cell_that_is_not_there_is_gone_and_one_that_was_not_is_new():
    made = flat(6, 2)
    table = frame(made)
    table["night"] = table["night"].cat.as_ordered()
    (found,) = changes(made, table[~((table["cell"] == OTHER) & (table["night"] >= made.name(4)))])
    assert (found.kind, found.cell, found.since_date) == ("gone", OTHER, made.date(4))
    (found,) = changes(made, table[~((table["cell"] == OTHER) & (table["night"] < made.name(5)))])
    assert (found.kind, found.cell, found.since_date) == ("new", OTHER, made.date(5))


def test_a_stage_that_is_gone_is_told():
    made = flat(6, 2)
    table = frame(made)
    lost = (table["cell"] == CELL) & (table["stage"] == "target.logits") & (table["night"] == made.name(5))
    (found,) = changes(made, table[~lost])
    assert (found.kind, found.stage, found.mode) == ("gone", "target.logits", "local")
    assert "1 more" in found.sentence


def test_the_first_night_has_nothing_to_tell():
    made = flat(1, 2)
    assert changes(made) == []


def test_a_table_of_broken_cells_alone_is_judged():
    made = flat(3, 1)
    table = frame(made)
    table = table[table["stage"] == "speed"].assign(
        stage="cell", metric="passed", unit="share", cell_verdict="inconclusive"
    )
    assert changes(made, table) == []


def recorded(url: str, made: World, number: int, kept=(CELL, OTHER), left_out=(), goldens="") -> None:
    """One night with these cells of the matrix, without those that `--only` left out."""
    found = [one.model_copy(update={"golden_digest": goldens}) for one in results(made, number)]
    found = [one for one in found if one.cell.name in kept]
    append(url, night(made, number).model_copy(update={"left_out": tuple(left_out)}), found)


def test_a_cell_that_only_leaves_out_is_not_gone_until_the_matrix_has_it_no_more(tmp_path):
    made, url = flat(8, 2), str(tmp_path)
    for number in range(4):
        recorded(url, made, number)
    for number in (4, 5):
        recorded(url, made, number, [CELL], [OTHER])
    assert [one for one in verdicts(load(url, repeats=True), made.name(5)) if one.cell == OTHER] == []
    for number in (6, 7):
        recorded(url, made, number, [CELL])
    (found,) = verdicts(load(url, repeats=True), made.name(7))
    assert (found.kind, found.cell, found.since_night) == ("gone", OTHER, made.name(6))


def test_another_golden_is_told_in_one_line_on_its_night_and_beside_what_changed_with_it(tmp_path, parity):
    made, url = flat(17, 2), str(tmp_path)
    made.values[16:, made.column(CELL, "drafter.fc_out", "local", "l2")] += 0.5
    for number in range(16):
        recorded(url, made, number, goldens="a" * 64 if number else "")
        if number in (1, 15):
            assert verdicts(load(url, repeats=True), made.name(number)) == []
    recorded(url, made, 16, goldens="b" * 64)
    found = {(one.kind, one.cell): one for one in verdicts(load(url, repeats=True), made.name(16))}
    assert set(found) == {("regression", CELL), ("golden", CELL), ("golden", OTHER)}
    assert found["golden", OTHER].sentence == (
        f"the golden of {OTHER} is another one than in night {made.name(15)} (bbbbbbbbbb, it was aaaaaaaaaa)"
    )
    assert found["regression", CELL].sentence.endswith(f"; golden was {'a' * 10}, is {'b' * 10}")
    ended = parity("history", url, "--changes", "--cell", OTHER)
    assert ended.code == 0 and f"golden       the golden of {OTHER} is another one" in ended.out
