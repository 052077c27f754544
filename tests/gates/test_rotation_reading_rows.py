"""What is made of rotations by hand: configs that cannot be known, the readings of each config, the pair's passes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from parity.drafter_config import NESTED
from parity.errors import DeviceFailed, NotOffered, UsageError
from parity.gates import positions
from parity.gates.positions import SHOWN, SIDES, SPREAD, STYLES, restyled, unknown
from parity.gates.positions_passes import SAME
from parity.gates.positions_rotation import RotationError, RotationResult

NUMBERS = {"factor": 8.0, "original_max_position_embeddings": 64.0}
CONFIG = {
    "head_dim": 4,
    "max_position_embeddings": 32,
    "rope_scaling": {"rope_type": "yarn", **NUMBERS},
    "rope_theta": 1e4,
}


def test_a_config_inside_another_is_restyled_there():
    for style in STYLES:
        rest = {"speculators_model_type": "eagle3"}
        outer = rest | {NESTED: CONFIG}
        assert restyled(outer, style) == rest | {NESTED: restyled(CONFIG, style)}
        assert [*unknown(outer, style)] == [(what, rest | {NESTED: one}) for what, one in unknown(CONFIG, style)]


def test_a_config_is_unknown_without_any_one_of_its_numbers_and_in_two_spellings():
    found = dict(unknown(CONFIG, "rope_scaling"))
    rest = {key: value for key, value in CONFIG.items() if key not in ("rope_scaling", "rope_theta")}
    kind, other = {"rope_type": "yarn"}, {"rope_type": "nonsense"}

    def with_(theta, **scaling):
        return rest | {"rope_scaling": scaling, "rope_theta": theta}

    assert found == {
        "type 'nonsense'": with_(1e4, **NUMBERS, **other),
        "type 'yarn2'": with_(1e4, **NUMBERS, rope_type="yarn2"),
        "type 'nonsense' under its old name": with_(1e4, **NUMBERS, type="nonsense"),
        "no type": with_(1e4, **NUMBERS),
        "no factor": with_(1e4, **kind, original_max_position_embeddings=64.0),
        "no original_max_position_embeddings": with_(1e4, **kind, factor=8.0),
        "no rope_theta": with_(None, **kind, **NUMBERS, rope_theta=None),
        "two types in two spellings": with_(1e4, **kind, **NUMBERS) | {"rope_parameters": other | {"rope_theta": 1e4}},
    }
    under = dict(unknown(CONFIG, "rope_parameters"))
    assert under["two types in two spellings"]["rope_scaling"] == other | {"rope_theta": 1e4}
    assert under["no type"]["rope_parameters"] == NUMBERS | {"rope_theta": 1e4}
    bare = dict(unknown({"rope_theta": 1e4}, "rope_parameters"))
    assert "no type" not in bare and "type 'default2'" in bare


def reading(share: float) -> RotationResult:
    return RotationResult(f"toy {share:g}", 12, 2e-3, "position 7, pair 1", share, 1e-3, (1e-3, 2e-3))


def context(**more) -> SimpleNamespace:
    given = dict(device_name="their.device:load", rotate=lambda *of: None, configs=Path("/configs"), seed=7)
    return SimpleNamespace(**{**given, **more})


@pytest.fixture
def readings(monkeypatch):
    """What each config's rotation comes to: a figure for each in turn, or what is raised; and what was asked."""

    def make(*figures):
        asked, left = [], [*figures]

        def judge(rotate, folder, side, name, seed, some=None):
            asked.append((str(folder), side, name, seed, some))
            figure = left.pop(0)
            if isinstance(figure, Exception):
                raise figure
            return reading(figure)

        monkeypatch.setattr(positions, "judge_rotation", judge)
        monkeypatch.setattr(positions, "_respelt", lambda rotate, folder, side, seed: iter([reading(0.25)]))
        return asked

    return make


def test_the_published_configs_and_the_pairs_own_are_read_each_in_both_spellings(readings):
    asked = readings(0.5, 1.0, 0.75)
    verdict, said, figures = positions._long(context(), "target", Path("/own"))
    assert asked == [
        ("/configs/gpt-oss-20b", "target", "gpt-oss-20b", 7, None),
        ("/configs/gpt-oss-120b", "target", "gpt-oss-120b", 7, SPREAD),
        ("/own", "target", "own", 7, None),
    ]
    assert (SPREAD, SIDES["drafter"]) == (2048, ("p-eagle-20b", "p-eagle-120b"))
    assert verdict == "pass" and said == f"6 readings, at most 1 of the float32 bound; {reading(0.5)}"
    assert [one["share"] for one in figures["readings"]] == [0.5, 0.25, 1.0, 0.25, 0.75, 0.25]


def test_a_reading_beyond_its_bound_fails_and_the_worst_is_told(readings):
    readings(1.5, 0.5, 3.0)
    verdict, said, _ = positions._long(context(), "target", Path("/own"))
    assert (verdict, said) == ("fail", f"2 of 6 readings wrong; {reading(3.0)}")


def test_a_rotation_that_is_none_fails_and_keeps_the_readings_before(readings):
    readings(0.5, RotationError("rotate gave nothing"))
    verdict, said, figures = positions._long(context(), "drafter", Path("/own"))
    assert (verdict, said) == ("fail", "drafter of p-eagle-120b: rotate gave nothing")
    assert [one["share"] for one in figures["readings"]] == [0.5, 0.25]


def test_without_a_rotation_or_the_published_configs_nothing_is_read():
    with pytest.raises(NotOffered) as refused:
        positions._rotary(context(rotate=None))
    said = "their.device shows no rotation alone: add parity.seam.Rotary as their.device.rotate"
    assert str(refused.value) == said
    with pytest.raises(NotOffered, match=r"the published configs .* are not installed"):
        positions._published(context(configs=None), "target")
    given = context()
    assert positions._rotary(given) is given.rotate


def test_what_cannot_be_made_is_inconclusive_and_says_why():
    def refuses():
        raise UsageError("no such config")

    check = positions._attempt("a name", refuses)
    assert (check.name, check.verdict, check.evidence) == ("a name", "inconclusive", "no such config")
    check = positions._attempt("a name", lambda: ("pass", "a line", {"x": 1}))
    assert (check.verdict, check.evidence, check.figures) == ("pass", "a line", {"x": 1})
    with pytest.raises(ZeroDivisionError):
        positions._attempt("a name", lambda: 1 // 0)


@pytest.mark.parametrize("taken", [0, 1, 4, 5])
def test_of_configs_that_are_not_as_they_must_be_four_are_told(monkeypatch, taken):
    each = [f"{number}." for number in range(taken)]
    monkeypatch.setattr(positions, "not_refused", lambda rotate, folder, side: (each if side == "drafter" else [], 9))
    verdict, said, figures = positions._refusals(context(), {"target": Path("/t"), "drafter": Path("/d")})
    assert figures == {"tried": 18, "wrong": each} and SHOWN == 4
    if taken:
        first = "; ".join(each[:4])
        assert (verdict, said) == ("fail", f"{taken} of 18 not as they must be, first: {first}")
    else:
        assert (verdict, said[:30]) == ("pass", "18 of 18 as they must be: wron")


@pytest.fixture
def passes(monkeypatch):
    """The check of the pair's passes, where these rows are wrong."""

    def ask(wrong: dict[str, str], error: Exception | None = None):
        def keys(device, token, k):
            if error:
                raise error
            assert (token, k) == (5, 3)
            return {"target": np.zeros(40), "drafter": np.zeros(30)}, 20

        monkeypatch.setattr(positions, "cached_keys", keys)
        monkeypatch.setattr(positions, "plain_token", lambda ids, eos: 5 if (ids, eos) == ([1, 2], (9,)) else 0)
        monkeypatch.setattr(positions, "read_schedule", lambda folder: (f"schedule of {folder}", 64))
        family = SimpleNamespace(prompt_rows=lambda prompt: prompt - 1)
        monkeypatch.setattr(positions, "family_of", lambda name: family)
        first = {"target": ("schedule of /t", 20), "drafter": ("schedule of /d", 19)}
        monkeypatch.setattr(
            positions, "first_wrong",
            lambda schedule, side, rows, at: wrong.get(side, "") if (schedule, at) == first[side] else "misplaced",
        )  # fmt: skip
        monkeypatch.setattr(positions, "misturned", lambda schedule, rows: np.array([0.0, 1e-3 * len(rows)]))
        case = SimpleNamespace(prompts=[SimpleNamespace(ids=[1, 2])], k=3)
        device = SimpleNamespace(describe=lambda: SimpleNamespace(eos=(9,), family="p-eagle"))
        given = context(device=lambda: device, golden=SimpleNamespace(manifest=SimpleNamespace(case=case)))
        return positions._passes(given, {"target": Path("/t"), "drafter": Path("/d")})

    return ask


def test_rows_of_the_passes_are_turned_by_their_positions_or_told(passes):
    figures = {"apart": {"target": 0.04, "drafter": 0.03}, "bound": SAME}
    said = "40 target rows and 30 drafter rows turned by their positions, 20 in the prompt; keys at most 4.0e-02 apart"
    assert passes({}) == ("pass", said, figures)
    assert passes({"drafter": "d: so"}) == ("fail", "d: so", figures)
    assert passes({"target": "t: so", "drafter": "d: so"}) == ("fail", "t: so; d: so", figures)
    with pytest.raises(NotOffered, match="too few"):
        passes({}, NotOffered("too few"))
    with pytest.raises(DeviceFailed, match=r"their\.device:load"):
        passes({}, ValueError("no shape"))


def test_a_respelt_config_is_written_anew_for_each_reading(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    seen = []

    def judge(rotate, folder, side, name, seed, some):
        seen.append((json.loads((folder / "config.json").read_text()), name, seed, some))
        return reading(0.5)

    monkeypatch.setattr(positions, "judge_rotation", judge)
    assert len([*positions._respelt(None, tmp_path, "target", 7)]) == 2
    name = tmp_path.name
    assert seen == [(restyled(CONFIG, style), f"{name} under {style},", 7, SPREAD) for style in STYLES]
