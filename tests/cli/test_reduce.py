"""`parity reduce`: the smallest case that still fails, as a golden of its own."""

from __future__ import annotations

import json
import shlex
from types import SimpleNamespace

import pytest

from parity.compare.report import INCONCLUSIVE, Place, Report
from parity.compare.structure import Finding
from parity.diagnose.ranks import RankMismatch
from parity.errors import DeviceFailed, Inconclusive
from parity.golden.choice import special
from parity.golden.store import Dump
from parity.reduce import Reducer, Shrunk
from tests.sample import by_night

WINDOW = 32


@by_night
def test_a_window_that_is_off_shows_once_the_prompt_is_longer_than_the_window(parity, shallow_golden, tmp_path):
    out, file = tmp_path / "reduced", tmp_path / "reduced.json"
    device = ("--device", "parity.device.faults:attn_window_missing_once")
    found = parity("reduce", "--golden", shallow_golden.folder, *device, "--out", out, "--json", file)
    assert found.code == 1, found
    case = json.loads(file.read_text())
    # Bisection stops at a prompt that fails while one token less does not; a row past the window may hide in noise.
    assert WINDOW < len(case["ids"]) <= WINDOW + 8 and (case["k"], case["round"]) == (1, 0)
    assert Dump(out).manifest.derived == f"cut from {shallow_golden.folder} by parity reduce"
    assert found.last == f"reproduce: {case['reproduce']}"
    again = parity(*shlex.split(case["reproduce"])[1:])
    assert again.code == 1 and "first divergent: target.layers.4.attn_out" in again.last


def test_a_place_that_is_taken_is_told_before_anything_is_tried(parity, shallow_golden, tmp_path):
    (tmp_path / "mine").write_text("mine")
    device = ("--device", "parity.device.faults:load_fc_chunks")
    found = parity("reduce", "--golden", shallow_golden.folder, *device, "--out", tmp_path / "mine")
    assert found.code == 2 and "mine exists already" in found.err and "fails" not in found.out + found.err
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_clean_device_has_nothing_to_reduce(parity, shallow_golden, tmp_path):
    found = parity("reduce", "--golden", shallow_golden.folder, "--out", tmp_path / "reduced")
    assert found.code == 0 and found.last.startswith("nothing to reduce")
    assert not (tmp_path / "reduced").exists()


def test_what_is_written_is_marked_as_derived_and_is_no_default(parity, shallow_golden, tmp_path, monkeypatch):
    """By day with a search that is made up; what it finds is dumped by the reference."""
    place, out = Place("target.logits", None, 0, 0), tmp_path / "reduced"
    red = SimpleNamespace(first=place, first_in=lambda golden: place)
    red.run = SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(mode="local")))
    monkeypatch.setattr("parity.reduce.FailingRun", SimpleNamespace)
    monkeypatch.setattr("parity.reduce.find_failing_run", lambda *asked, **options: red)
    monkeypatch.setattr(Reducer, "reduce", lambda reducer, first: Shrunk((3, 4), 1, 0, first))
    found = parity("reduce", "--golden", shallow_golden.folder, "--out", out)
    assert found.code == 1, found
    made, derived = Dump(out).manifest, f"cut from {shallow_golden.folder} by parity reduce"
    assert made.derived == derived and special(made) == f"is {derived}"


MISSING = Finding("missing", "target.logits", 0, 0, "not shown: target.logits")


@pytest.mark.parametrize(("found", "words"), [
    (Report("d", "bfloat16", "chained", *"prg", (), (MISSING,), None, None, INCONCLUSIVE, ""), MISSING.message),
    (RankMismatch("chained", Place("target.logits", None, 0, 0), 2, 1e-7, ""), "2 stages differ between ranks"),
])  # fmt: skip
def test_what_has_no_failing_row_is_inconclusive_with_the_reason(
    found, words, parity, shallow_golden, tmp_path, monkeypatch
):
    monkeypatch.setattr("parity.reduce.find_failing_run", lambda *asked, **options: found)
    ended = parity("reduce", "--golden", shallow_golden.folder, "--out", tmp_path / "reduced")
    assert ended.code == 3 and words in ended.err and ended.err.count("\n") == 1, ended


def test_a_smaller_case_that_the_device_breaks_on_is_not_the_end(shallow_golden, monkeypatch):
    """A port that takes no K of 1 and no prompt below 4 tokens: what had failed by then was lost."""
    told, tried, place = [], [], Place("target.logits", None, 0, 0)

    def fails(reducer, golden):
        if tried and (tried[-1].k == 1 or len(tried[-1].ids) < 4):
            raise DeviceFailed("narrow", "draft", "TypeError: 'NoneType' object is not subscriptable")
        return place

    monkeypatch.setattr(Reducer, "_fails", fails)
    monkeypatch.setattr(Reducer, "_golden", lambda reducer, case: tried.append(case) or reducer.golden)
    reducer = Reducer(shallow_golden, *[None] * 2, "local", *[None] * 3, told.append)
    found = reducer.reduce(place)
    assert (len(found.ids), found.k) == (4, 2) and "device narrow failed in draft" in told[0], (found, told)


def test_what_no_prompt_alone_shows_is_not_claimed(shallow_golden, monkeypatch):
    """A device that is wrong on its third run: a case of it passes, and its command would not reproduce anything."""
    monkeypatch.setattr(Reducer, "_fails", lambda reducer, golden: None)
    reducer = Reducer(shallow_golden, *[None] * 2, "local", *[None] * 4)
    with pytest.raises(Inconclusive, match="every prompt alone passes there on a fresh device"):
        reducer.reduce(Place("target.logits", None, 0, 0))
