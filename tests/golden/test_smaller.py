"""Smaller goldens: what is kept, that a dump and a golden made smaller agree, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from parity.errors import UsageError
from parity.golden import smaller
from parity.golden.digests import sealed
from parity.golden.keeping import best
from parity.golden.smaller import Smaller, smaller_golden
from parity.golden.store import Dump
from parity.golden.trust import trusted
from parity.golden.views import GoldenSlice
from parity.sketch import projection, sketch
from tests.meta import worlds
from tests.meta.dumps import clean, write
from tests.meta.smaller import smaller_run

STAGE = "target.layers.0.ffn_out"


@pytest.fixture
def whole(tmp_path):
    return write(clean(worlds.SHORT), tmp_path)[0]


def test_signs_are_the_same_on_every_machine():
    table = projection(7, 3, 70)
    assert table[:8, 0].tolist() == [1.0, 1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0]
    assert (table[:, -1] == 1).all()
    assert set(np.unique(table)) == {-1.0, 1.0}


def test_a_narrower_table_is_the_beginning_of_a_wider_one():
    np.testing.assert_array_equal(projection(1, 3, 70), projection(1, 5, 200)[:70, [0, 1, 2, 5]])


def test_sketches_do_not_depend_on_the_number_of_rows():
    rows = np.random.default_rng(0).standard_normal((40, 96)).astype(np.float32)
    np.testing.assert_array_equal(sketch(rows, 8, 0)[11:12], sketch(rows[11:12], 8, 0))


def test_the_best_are_in_order_and_of_equal_ones_the_lowest_ids():
    ids, values, total = best(np.array([[1.0, 3.0, 3.0, 0.0, 3.0]]), 2)
    assert (ids.tolist(), values.tolist()) == ([[1, 2]], [[3.0, 3.0]])
    assert total[0] == pytest.approx(np.log(np.e + 3 * np.e**3 + 1))


def test_what_needs_whole_tensors_is_told_in_a_sentence(whole, tmp_path):
    asked = {
        "a sketch of 16 numbers a row": (STAGE, Smaller(16)),
        "the 16 best a row": ("target.logits", Smaller(logits="top:16")),
        "some rows": (STAGE, Smaller(positions="0-9")),
    }
    for what, (stage, kept) in asked.items():
        small = Dump(smaller_golden(whole, tmp_path / what, kept))
        with pytest.raises(UsageError, match=f"keeps {what} of {stage}: what is asked for needs the whole tensor"):
            small.contents("float32", 0, 0, stage)
    with pytest.raises(UsageError, match="what else judges reads whole tensors"):
        trusted(small)
    assert small.contents("float32", 0, 0, "target.tokens") is not None


def test_rows_are_kept_by_position_and_those_of_rounds_always(whole, tmp_path):
    small = Dump(smaller_golden(whole, tmp_path / "small", Smaller(positions="3-5,40")))
    assert small.record("float32", 0, 0, STAGE).index.tolist() == [3, 4, 5, 40, 148, 149]
    rows = small.rows["float32", 0, 1, STAGE]
    assert len(small.record("float32", 0, 1, STAGE).index) == rows.shape[0]
    assert len(small.record("float32", 0, 0, "target.layers.0.router_logits").index) == 150
    cut = GoldenSlice(small, 1, 1)
    assert cut.record("float32", 0, 0, STAGE).index.tolist() == [3, 4, 5, 40, 48, 49]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (Smaller(0), "--sketch 0"),
        (Smaller(5000), "--sketch 5000"),
        (Smaller(sketch_seed=1), "--sketch-seed goes with --sketch N"),
        (Smaller(logits="top"), "--logits top"),
        (Smaller(logits="top:0"), "--logits top:0"),
        (Smaller(positions="5-3"), "the range ends before it begins"),
        (Smaller(positions="a"), "it takes positions and ranges"),
    ],
)
def test_what_cannot_be_kept_is_refused(asked, told, whole, tmp_path):
    with pytest.raises(UsageError, match=told):
        smaller_golden(whole, tmp_path / "small", asked)
    assert not (tmp_path / "small").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kept": [dict(stages="*", form="sketch", numbers=8, seed=0)] * 2}, "is kept as two of sketch"),
        ({"kept": [dict(stages="nothing", form="sketch", numbers=8, seed=0)]}, "no stage has that name"),
        ({"kept": [dict(stages="*", form="top", numbers=8, seed=1)]}, "the best logits have no seed"),
        ({"kept": [dict(stages="*", form="sketch", numbers=0, seed=0)]}, "numbers"),
        ({"positions": "9-3"}, "ends before it begins"),
        ({"positions": "0-9"}, "does not match the manifest's digest"),
        ({"kept": [dict(stages="*", form="sketch", numbers=8, seed=0)]}, "does not match the manifest's digest"),
    ],
)
def test_a_manifest_that_says_another_thing_of_its_shards_is_refused(change, told, whole):
    path = whole.folder / "manifest.json"
    raw = json.loads(path.read_bytes())
    raw["case"] |= change
    path.write_bytes(sealed(raw))
    with pytest.raises(UsageError, match=told):
        dump = Dump(whole.folder)
        for place in dump.rows:
            dump.record(*place)


def test_a_run_is_no_golden_to_be_made_smaller(tmp_path):
    _, run = write(clean(worlds.SHORT), tmp_path)
    with pytest.raises(UsageError, match="is a run: a whole golden can be"):
        smaller_golden(run, tmp_path / "small", Smaller(8))
    assert smaller_run(run, tmp_path / "less", Smaller(8)).keeps


def test_of_a_prompt_the_tensors_of_these_stages_and_of_no_other_variant_are_copied(whole):
    names = [whole.declared[name] for name in ("target.logits", "verify.logits")]
    places = [place for place, _ in smaller._tensors(whole, "float32", 0, names)]
    rounds = len(whole.manifest.case.prompts[0].generated.acceptance_length)
    assert sorted(places) == [(0, "target.logits"), *((round_, "verify.logits") for round_ in range(1, rounds + 1))]
