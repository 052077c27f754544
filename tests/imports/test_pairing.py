"""Tensors under any name find their stages by what they hold; what is like several, or like none, is said."""

from __future__ import annotations

import re
import tomllib

import numpy as np
import pytest

from parity import limits
from parity.errors import UsageError
from parity.imports.captured import Captured
from parity.imports.content import content
from parity.imports.names import read_map
from parity.imports.pairing import pair
from parity.imports.suggesting import suggest

ATTN, STREAM = "target.layers.2.attn_out", "target.layers.1.out"


@pytest.fixture(scope="module")
def held(short_golden):
    return content(short_golden)


@pytest.fixture
def suggested(short_golden):
    """The suggestion for arrays by name, or by name and step."""

    def make(arrays):
        named = ((key if isinstance(key, tuple) else (key, None)) + (value,) for key, value in arrays.items())
        return suggest(
            [Captured(name, "here", lambda v=value: v, 0, step) for name, step, value in named], short_golden
        )

    return make


@pytest.fixture
def ran(short_run):
    """What the bfloat16 device handed over, as float32 where it is numbers."""

    def of(stage, round_=0):
        array = np.array(short_run.contents("bfloat16", 0, round_, stage))
        return array if array.dtype.kind in "iu" else array.astype(np.float32)

    return of


def rows(suggestion):
    return tomllib.loads(suggestion.text()).get("row", [])


LAYOUTS = {
    "q": lambda q: q.transpose(1, 0, 2)[None],
    "v": lambda v: v.reshape(1, len(v), -1),
    "attn_in": lambda x: x.T,
    "ffn_out": lambda x: np.concatenate([x[:3] * 0 + 7, x]),
    "router_logits": lambda x: np.concatenate([x, np.random.default_rng(0).standard_normal((5, x.shape[1]))]),
}


def test_a_dump_of_meaningless_names_becomes_the_run_it_was(short_golden, short_run, ran, imported, tmp_path, parity):
    names, arrays = {}, {}
    places = [place for place in short_run.rows if place[2] < 2 and not place[3].startswith("kv.")]
    for number, (_, _, round_, stage) in enumerate(np.random.default_rng(1).permutation(np.array(places[::2], object))):
        part = stage.rsplit(".", 1)[-1]
        array = ran(stage, round_)
        arrays[f"b{number}"] = LAYOUTS.get(part, lambda x: x)(array) if stage.startswith("target.layers") else array
        names[f"b{number}"] = round_, stage
    np.savez(tmp_path / "d.npz", **arrays)
    asked = ["import", "--from", "files", tmp_path / "d.npz", "--golden", short_golden.folder]
    found = parity(*asked, "--suggest-map", tmp_path / "m.toml")
    assert found.code == 3 and "are for you to choose" in found.out, "whole numbers are in several places"
    run, taken = imported("files", tmp_path / "d.npz", names=tmp_path / "m.toml"), 0
    for name, (round_, stage) in names.items():
        (row,) = [row for row in read_map(str(tmp_path / "m.toml")).rows if re.fullmatch(row.name, name)] or [None]
        numbers = not short_run.declared[stage].stage.exact
        # Round 0 wrote what is in the cache now, layer by layer: nothing of a single round tells the two apart.
        unsure = re.fullmatch(r"target\.layers\.\d+\.[kv]", stage) and round_ == 0
        assert row.stage == stage if row else unsure or not numbers, (name, stage, row)
        if row is not None:
            taken += 1
            assert np.array_equal(
                run.contents("bfloat16", 0, round_, stage), short_run.contents("bfloat16", 0, round_, stage)
            )
    assert taken > 70 and run.manifest.case.precision == "bfloat16"


def test_names_that_count_layers_and_steps_become_one_row(suggested, ran):
    made = suggested(
        {(f"l{layer + 1}/keys", step): ran(f"target.layers.{layer}.k", step) for layer in range(4) for step in range(3)}
    )
    (row,) = rows(made)
    assert (row["stage"], row["round"]) == ("target.layers.{l-1}.k", "{step}") and row["name"] == r"l(?P<l>\d+)/keys"
    cache = suggested(
        {(f"l{layer}/cache", step): ran(f"kv.target.{layer}.k", step) for layer in range(4) for step in range(3)}
    )
    assert rows(cache)[0]["stage"] == "kv.target.{l}.k", "the rounds tell the cache from the pass"


def test_what_two_stages_hold_alike_is_said_and_not_chosen(suggested, ran):
    made = suggested({"keys": ran("target.layers.0.k"), "q": ran("target.layers.0.q")})
    assert [row["stage"] for row in rows(made)] == ["target.layers.0.q"]
    assert all(word in made.unsure["keys"] for word in ("target.layers.0.k", "kv.target.0.k"))
    assert '# stage = "target.layers.0.k"' in made.text() and '# stage = "kv.target.0.k"' in made.text()


def test_what_is_no_stage_as_it_is_has_no_row(suggested, ran):
    noise = np.random.default_rng(3).standard_normal(ran(ATTN).shape, np.float32)
    arrays = {
        "added": ran(ATTN) + ran(STREAM),
        "scaled": ran(ATTN) * np.float32(3.25),
        "last": ran("target.logits")[-1:],
        "noise": noise,
        "zeros": noise * 0,
        "broken": np.where(noise > 2, np.nan, noise),
        "odd": noise[:, :7],
        "few": np.float32([[1, 2, 3, 1, 2, 1]]),
        "length": np.array([3]),
        "rows": np.array([[5, 0]] * 3),
    }
    made = suggested(arrays)
    assert not rows(made) and not made.paired
    said = made.unsure | made.unlike
    for name, words in {
        "added": f"{ATTN}, prompt 0, round 0 with the residual stream added to it already",
        "scaled": f"{ATTN}, prompt 0, round 0, times 3.2",
        "last": "target.logits, prompt 0, round 0, rows 4 to 4 of 5 only",
        "noise": "nothing is like it; nearest",
        "zeros": "constant 0",
        "broken": "holds NaN or infinity",
        "odd": "no stage has rows of such sizes",
        "length": "too few whole numbers to tell",
        "rows": "too few whole numbers to tell",
    }.items():
        assert words in said[name], said[name]
    assert re.search("too few numbers|nothing is like it", said["few"])


def test_one_that_does_not_follow_its_form_is_kept_out_of_its_row(suggested, ran):
    arrays = {f"a{layer}": ran(f"target.layers.{layer}.attn_out") for layer in range(6)}
    arrays["a2"] = arrays["a2"] + ran(STREAM)
    exception, row = rows(suggested(arrays))
    assert exception["name"] == "a2" and "added to it already" in exception["ignore"]
    assert row["stage"] == "target.layers.{l}.attn_out"


def test_one_that_is_like_another_stage_than_its_form_is_kept_out_of_its_row(suggested, ran):
    arrays = {f"a{layer}": ran(f"target.layers.{layer}.attn_out") for layer in range(6)}
    made = suggested(arrays | {"a2": ran("target.layers.5.ffn_out")})
    exception, row = rows(made)
    assert "target.layers.5.ffn_out" in exception["ignore"] and "a2" in made.unsure
    assert row["stage"] == "target.layers.{l}.attn_out"


def test_a_cache_with_rows_that_a_rollback_cleared_is_not_taken_for_the_rows_before(held, ran):
    broken = ran("kv.target.0.k", 1)
    broken[5:] = 0
    places = [fit.place for fit in pair(broken, held).fits]
    assert places != [(0, 0, "target.layers.0.k")] and (not places or (0, 1, "kv.target.0.k") in places)


def test_a_place_is_taken_once(suggested, ran):
    same = rows(suggested({"out": ran(STREAM), "next_in": ran(STREAM)}))
    assert same[0]["stage"] == STREAM and same[1]["ignore"] == "the same numbers as out"
    made = suggested({"out": ran(STREAM), "other": ran(STREAM) * np.float32(1.001)})
    assert len(rows(made)) == 1 and "is also like out: choose one of them" in made.unsure["other"]


def test_noise_of_any_stages_shape_is_paired_with_none(held, short_golden):
    draw = np.random.default_rng(5)
    shapes = {row.shape for place, row in short_golden.rows.items() if not short_golden.declared[place[3]].stage.exact}
    for _ in range(3):
        for shape in sorted(shapes):
            assert not pair(draw.standard_normal(shape).astype(np.float32), held).fits, shape


def test_limits_have_a_name(suggested, ran, monkeypatch):
    monkeypatch.setattr(limits, "PAIRED", 1)
    with pytest.raises(UsageError, match="more than 1 tensors"):
        suggested({"a": ran(ATTN), "b": ran(STREAM)})
    monkeypatch.setattr(limits, "PAIRED_ROWS", 100)
    with pytest.raises(UsageError, match="more than 100 rows"):
        suggested({"a": ran(ATTN)})


@pytest.mark.parametrize(
    "options", [[], ["--out", "r", "--suggest-map", "m"], ["--suggest-map", "m", "--map", "stages"]]
)
def test_a_run_or_a_map(options, parity, short_golden, tmp_path):
    np.savez(tmp_path / "d.npz", a=np.ones(3))
    found = parity("import", "--from", "files", tmp_path / "d.npz", "--golden", short_golden.folder, *options)
    assert found.code == 2 and "name one of the two" in found.err
