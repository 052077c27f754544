"""Lines and ticks of a map stand where their position is."""

from __future__ import annotations

from parity.nightly.records import HeatMap, Landmarks
from parity.reports.page import axes

POSITIONS = (0, 10, 20, 30)


def test_a_position_stands_inside_its_column_and_one_beyond_the_map_nowhere():
    assert [axes.place(POSITIONS, at) for at in (0, 5, 10, 35, 40)] == [0.0, 12.5, 25.0, 87.5, 100.0]
    assert axes.place(POSITIONS, 41) is None and axes.place((), 0) is None
    assert axes.place((5,), 4) is None and axes.place((5,), 5) == 0.0


def test_ticks_are_round_positions_and_layers_are_thinned():
    assert axes.ticks(POSITIONS) == ((0.0, "0"), (25.0, "10"), (50.0, "20"), (75.0, "30"))
    assert axes.ticks((7,)) == ((0.0, "7"),) and axes.ticks(()) == ()
    assert [label for _, label in axes.sides(tuple(map(str, range(36))))] == [
        "0",
        "5",
        "10",
        "15",
        "20",
        "25",
        "30",
        "35",
    ]
    assert axes.sides(("0", "1", "2", "3")) == ((12.5, "0"), (62.5, "2")) and axes.sides(("",)) == ()


def test_lines_mark_the_window_the_prompts_ends_and_the_first_bad_row():
    stages = [
        {"bad_rows": 3, "first": {"position": 20}},
        {"bad_rows": 1, "first": {"position": 10}},
        {"bad_rows": 0, "first": {"position": 0}},
        {"bad_rows": 1, "first": {"position": None}},
    ]
    assert axes.first_bad(stages) == 10 and axes.first_bad(stages[2:]) is None
    found = axes.marks(POSITIONS, Landmarks(window=99, prompt_ends=(10, 20, 30)), 20)
    assert found == (("end", 25.0), ("end", 75.0), ("bad", 50.0))
    assert axes.marks(POSITIONS, Landmarks(window=20, prompt_ends=(10,)), None) == (("window", 50.0), ("end", 25.0))


def test_what_a_pointer_reads_has_every_square():
    one = HeatMap(
        family="f", mode="local", unit="x noise", layers=(3, 4), positions=(0, 8), x=((0.5, None), (1.25, float("inf")))
    )
    assert axes.values(one, ("3", "4")) == "3,4|0,8|0.50,;1.25,infinite"
