"""Policies by hand: both ends of each limit, which row speaks of a stage, which rows are dead, and where files are."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from parity import limits
from parity.errors import UsageError
from parity.policy import (
    LIMITS,
    OWN,
    PAIR,
    STATISTICS,
    Bound,
    Limit,
    Policy,
    Row,
    Tolerance,
    limit,
    mode_of,
    read_policy,
    shipped,
    source_of,
)


def row(stages: str = "*", judge: str = "exact", reason: str = "as a test has it", **more) -> dict:
    return dict(stages=stages, judge=judge, reason=reason) | more


def policy(*rows: dict, **more) -> Policy:
    return Policy.model_validate(dict(name="odd", row=rows) | more)


def refused(made, *of, **more) -> str:
    """The sentence of the first mistake."""
    with pytest.raises(ValidationError) as caught:
        made(*of, **more)
    return caught.value.errors()[0]["msg"]


def test_a_limit_is_by_statistic_and_by_judge_and_else_by_the_unit():
    assert {name: limit(name, "noise") for name in OWN} == {
        **dict.fromkeys(("l2", "median", "worst_row", "worst_column", "largest"), Limit.NOISE),
        **dict.fromkeys(("scale", "bias"), Limit.ERRORS),
    }
    assert {name: limit(name, "relative") for name in OWN} == dict.fromkeys(OWN, Limit.RELATIVE) | {
        "largest": Limit.ELEMENT
    }
    both = {name: limit(name, "noise") for name in STATISTICS if name not in OWN}
    assert both == {name: limit(name, "relative") for name in STATISTICS if name not in OWN}
    assert both.pop("cosine_distance") is both.pop("pearson_distance") is Limit.DISTANCE
    assert (both.pop("r_ratio"), both.pop("beyond_tolerance")) == (Limit.NOISE, Limit.ABSOLUTE)
    assert both.pop("ulp_max") is Limit.ULP
    shares = {name for name, found in both.items() if found is Limit.SHARE}
    assert shares == {"top1_missed", "top5_missed", "top50_missed", "unlike", "ulp_beyond"}
    assert {both[name] for name in both.keys() - shares} == {Limit.RELATIVE} and LIMITS.keys() < STATISTICS.keys()


def test_limits_are_these_figures():
    due = {"NOISE": 200, "ERRORS": 1000, "RELATIVE": 1, "ELEMENT": 4, "DISTANCE": 1, "SHARE": 1, "ABSOLUTE": 65504}
    assert {one.name: one.figure for one in Limit} == due | {"ULP": 8388608}
    with pytest.raises(ValueError) as told:
        Limit.ELEMENT.refuse(4.5, "row 'q': largest")
    words = (
        "row 'q': largest = 4.5 bounds nothing, it has to be below 4: in RMS of the row: hardly an element is larger"
    )
    assert str(told.value).startswith(words)


def test_a_bound_is_two_figures_in_order_from_zero_on():
    assert Bound(ok=0.0, warn=0.0).warn == 0 and Bound(ok=1.5, warn=1.5).ok == 1.5
    assert refused(Bound, ok=1.5, warn=1.25) == "Value error, warn (1.25) is below ok (1.5)"
    for field in ("ok", "warn"):
        for value, said in ((-0.001, "greater than or equal to 0"), (float("inf"), "finite"), ("1", "valid number")):
            assert said in refused(Bound, **{"ok": 0.0, "warn": 5.0} | {field: value})
    assert "Extra inputs" in refused(Bound, ok=1.0, warn=1.0, fail=2.0)


def test_a_tolerance_is_absolute_and_may_be_relative_too():
    assert Tolerance(rtol=0.0, atol=1e-9).rtol == 0
    assert "greater than 0" in refused(Tolerance, rtol=0.0, atol=0.0)
    assert "greater than or equal to 0" in refused(Tolerance, rtol=-1e-9, atol=1.0)
    for field in ("rtol", "atol"):
        assert "finite" in refused(Tolerance, **{"rtol": 1.0, "atol": 1.0} | {field: float("inf")})


def within(ok: float = 0.0, warn: float = 0.0) -> dict:
    return {"ok": float(ok), "warn": float(warn)}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"judge": "noise"}, "row '*' judges by noise and sets no bound"),
        ({"judge": "relative"}, "row '*' judges by relative and sets no bound"),
        ({"judge": "none", "l2": within()}, "row '*' judges by none and sets a bound"),
        ({"judge": "experts", "l2": within()}, "row '*' judges by experts and sets a bound"),
        ({"judge": "noise", "ulp_beyond": within(), "ulp": 4}, "row '*': ulp = 4 is none of 0, 1, 3, 7, 15, …"),
        ({"judge": "noise", "ulp_max": within(), "ulp": 4}, ""),
        ({"judge": "noise", "ulp_beyond": within(), "ulp": 0}, ""),
        ({"judge": "noise", "ulp_beyond": within(), "ulp": 7}, ""),
        ({"judge": "noise", "ulp_max": within(), "ulp": 2**23 - 1}, ""),
        ({"judge": "noise", "ulp_max": within(), "ulp": 2**23}, "row '*': ulp = 8.38861e+06 bounds nothing"),
        ({"judge": "noise", "l2": within(1, 199)}, ""),
        ({"judge": "noise", "l2": within(1, 200)}, "row '*': l2 = 200 bounds nothing"),
        ({"judge": "relative", "largest": within(1, 3.9)}, ""),
        ({"judge": "relative", "largest": within(1, 4)}, "row '*': largest = 4 bounds nothing"),
        ({"judge": "noise", "beyond_tolerance": within(1, 1)}, "row '*': beyond_tolerance and tolerances go together"),
        ({"judge": "noise", "l2": within(1, 1), "tolerances": {"float32": {"rtol": 0.1, "atol": 1.0}}},
         "row '*': beyond_tolerance and tolerances go together"),
        ({"reason": "too short"}, "String should have at least 10 characters"),
        ({"reason": "ten letter"}, ""),
        ({"modes": ()}, "Tuple should have at least 1 item after validation, not 0"),
        ({"ulp": -1}, "Input should be greater than or equal to 0"),
    ],
)  # fmt: skip
def test_a_row_is_refused_by_what_is_wrong_with_it(more, said):
    if not said:
        assert Row.model_validate(row(**more))
        return
    found = refused(Row.model_validate, row(**more)).removeprefix("Value error, ")
    assert found.startswith(said) if said.endswith("bounds nothing") else found == said


@pytest.mark.parametrize(
    ("rtol", "atol", "times", "said"),
    [
        (0.3, 1.0, 3, ""),
        (0.5, 1.0, 2, "row '*': float32 rtol x beyond_tolerance = 1 bounds nothing, it has to be below 1"),
        (0.1, 32752.0, 2, "row '*': float32 atol x beyond_tolerance = 65504 bounds nothing, it has to be below 65504"),
        (0.1, 32751.0, 2, ""),
    ],
)
def test_a_tolerance_times_its_bound_bounds_something(rtol, atol, times, said):
    made = row(
        judge="relative", beyond_tolerance=within(1, times), tolerances={"float32": {"rtol": rtol, "atol": atol}}
    )
    if said:
        assert refused(Row.model_validate, made).startswith(f"Value error, {said}")
    else:
        assert Row.model_validate(made).bounds.keys() == {"beyond_tolerance"}


def test_bounds_are_keys_of_a_row_or_given_as_such():
    made = Row.model_validate(row(judge="noise", l2=within(1, 2), bounds={"median": within(3, 4)}))
    assert made.bounds == {"l2": Bound(ok=1, warn=2), "median": Bound(ok=3, warn=4)}
    assert Row.model_validate(made) is made and refused(Row.model_validate, 7)


SPOKEN = [("local",), ("chained",), ("quantised",), ("chained", "local")]


@pytest.mark.parametrize(("modes", "due"), [*zip(SPOKEN, ("l", "cq", "q", "clq"), strict=True)])
def test_a_row_of_chained_comparisons_speaks_of_quantised_ones_too(modes, due):
    made = Row.model_validate(row("target.*", modes=modes))
    assert {mode[0] for mode in ("local", "chained", "quantised") if made.takes("target.embed", mode)} == {*due}
    assert not made.takes("drafter.logits", modes[0])


@pytest.mark.parametrize(
    ("mode", "caches", "chained", "due"),
    [("chained", "fp8", False, "quantised"), ("local", "fp8", False, "local"), ("local", "fp8", True, "quantised"),
     ("chained", "", True, "chained"), ("local", "", True, "local")],
)  # fmt: skip
def test_a_comparison_is_quantised_where_caches_are_and_something_is_chained(mode, caches, chained, due):
    assert mode_of(mode, caches, chained) == due
    assert chained or mode_of(mode, caches) == due


def test_the_first_row_that_speaks_of_a_stage_judges_it():
    made = policy(row("*.q", "none", modes=("local",)), row("*.q"), row("target.*", "experts"))
    assert made.row("target.layers.0.q", "local").judge == "none"
    assert made.row("target.layers.0.q", "chained").judge == "exact"
    assert made.row("target.embed", "local").judge == "experts"
    with pytest.raises(UsageError, match=r"^policy odd: no row matches stage drafter\.logits in local mode$"):
        made.row("drafter.logits", "local")


def test_a_row_is_dead_where_others_take_every_stage_in_every_mode():
    rows = (row("*.q"), row("*.k", modes=("local",)), row("*.[qk]", modes=("local",)), row("no.stage"))
    said = "row 3 ('*.[qk]') never applies: row 1 ('*.q') and row 2 ('*.k') before it takes all its stages in its modes"
    assert refused(policy, *rows) == f"Value error, {said}"
    alive = policy(*rows[:2], row("*.[qk]"), row("no.stage"), row("*.q", modes=("quantised",)))
    assert alive.dead(PAIR) == "" and alive.dead(["target.layers.0.q"]).startswith(
        "row 3 ('*.[qk]') never applies: row 1"
    )
    assert alive.dead(["target.layers.0.k"]) == ""
    assert alive.unmatched(PAIR) == "no.stage" and alive.unmatched(["target.layers.0.k"]) == "*.q"
    assert alive.unmatched([]) == "*.q" and policy(row()).unmatched(PAIR) is None


def test_a_policy_has_so_many_rows():
    rows = [row(f"stage{number}") for number in range(limits.ROWS + 1)]
    assert len(policy(*rows[:-1]).rows) == limits.ROWS and refused(policy, *rows).startswith(
        "Tuple should have at most"
    )
    assert "Extra inputs" in refused(policy, row(), surprise=1)


def test_a_difference_of_devices_may_be_a_copy_and_has_no_bits_of_its_own():
    made = policy(row("*.q", "noise", l2=within(1, 2), unlike=within(0.1, 0.2)), row(copies=False)).between_devices()
    assert [one.copies for one in made.rows] == [True, True] and made.name == "odd"
    assert made.rows[0].bounds == {"l2": Bound(ok=1, warn=2)} and made.rows[1].bounds == {}


def test_a_policy_is_a_shipped_name_a_file_or_the_one_of_the_precision(tmp_path, monkeypatch):
    assert list(shipped()) == sorted(shipped()) and {"bfloat16", "float32"} <= shipped().keys()
    assert all(path.suffix == ".toml" and path.stem == name for name, path in shipped().items())
    assert source_of(None, "float32") == shipped()["float32"] and source_of("bfloat16", "x") == shipped()["bfloat16"]
    (tmp_path / "mine.toml").touch()
    assert source_of(tmp_path / "mine.toml", "x") == tmp_path / "mine.toml"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pcc").touch()
    assert source_of("pcc", "x") == shipped()["pcc"]  # a name goes before a file
    with pytest.raises(UsageError) as told:
        source_of("nowhere", "bfloat16")
    words = f"policy nowhere cannot be read: it is neither a file nor one of {', '.join(shipped())}"
    assert str(told.value) == words
    assert read_policy(precision="float32").name == "float32" and read_policy().name == "bfloat16"


def test_a_wrong_field_is_told_with_the_file(tmp_path):
    path = Path(tmp_path / "p.toml")
    path.write_text('name = "odd"\n[[row]]\nstages = "*"\njudge = "exact"\nreason = "short"\n')
    with pytest.raises(UsageError, match=rf"^policy {path}: row 1\.reason: String"):
        read_policy(path)
