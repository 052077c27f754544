"""What is not shown, by hand: pages that may be tied, scores that close experts move, numbers that no cache holds."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import hidden_pages, quantised, tipped
from parity.compare.hidden_pages import _after, _depth, near_ties, unseen_pages
from parity.compare.quantised import but_for_steps, by_noise, off_grid, unsettled
from parity.compare.rows import StageRows
from parity.compare.scores import NOISE_SIGMAS
from parity.grid import Grid
from parity.stages import declared

NAMES = declared(2, 2, pages=True)
SCORES, PAGES = "drafter.layers.{l}.page_scores", "drafter.layers.{l}.pages"
CACHE, TOKENS, LOGITS = "kv.target.0.k", "target.tokens", "target.logits"


def rows_of(name: str, golden, device=None, prompt=None, round_=None, position=None) -> StageRows:
    golden = np.asarray(golden)
    number = np.arange(len(golden))
    labels = (number * 0 if one is None else np.array(one) for one in (prompt, round_))
    position = number + 5 if position is None else np.array(position)
    device = golden if device is None else np.asarray(device)
    return StageRows(NAMES[name], golden, device, None, *labels, position)


@pytest.mark.parametrize(
    ("stage", "layer"),
    [
        ("drafter.layers.0.page_scores", -1), ("drafter.layers.1.pages", 0), ("drafter.layers.1.out", 1),
        ("kv.drafter.1.k", 0), ("kv.target.1.k", -1), ("target.layers.1.out", -1), ("drafter.fc_out", -1),
        ("target.logits", -1), ("drafter.layers.0.attn_out", 0),
    ],
)  # fmt: skip
def test_a_stage_is_computed_from_the_pages_of_so_many_layers(stage, layer):
    assert _depth(NAMES[stage]) == layer


def test_the_drafters_last_stages_are_computed_from_every_layers_pages():
    assert {_depth(NAMES[f"drafter.{part}"]) for part in ("pre_head_hidden", "logits", "draft_tokens")} == {2**63 - 1}


def test_rows_behind_the_first_tied_one_of_their_prompt_or_round():
    tied = {(0, 1, 7), (0, 2, 9), (1, 1, 30)}
    rows = rows_of(
        "drafter.fc_out", np.zeros((7, 2)), prompt=[0, 0, 0, 0, 1, 1, 2], round_=[1, 1, 2, 2, 1, 2, 1],
        position=[7, 8, 9, 10, 30, 31, 99],
    )  # fmt: skip
    assert _after(tied, rows, one_round=False).tolist() == [False, True, True, True, False, True, False]
    assert _after(tied, rows, one_round=True).tolist() == [False, True, False, True, False, False, False]


def test_pages_are_tied_whose_last_taken_and_first_left_score_within_noise(monkeypatch):
    """Two pages are taken of four; a row of which there are two has no other to take."""
    scores = [[9, 5, 4, 1], [9, 5, 5, 1], [9, 5, 3.5, 1], [5, 5, 5, 5], [1, 4, 5, 9.0]]
    held = {
        SCORES.format(l=1): rows_of(SCORES.format(l=1), np.array(scores)),
        PAGES.format(l=1): rows_of(PAGES.format(l=1), np.zeros((5, 2), np.int64)),
    }
    asked = []
    monkeypatch.setattr(
        hidden_pages, "stage_rows", lambda golden, run, named, **how: asked.append(how) or held.get(named.name)
    )
    monkeypatch.setattr(hidden_pages, "row_noise", lambda rows: np.full(len(rows.golden), 1 / NOISE_SIGMAS))
    golden = SimpleNamespace(declared=NAMES)
    assert near_ties(golden, 1) == {(0, 0, 5), (0, 0, 6), (0, 0, 9)}
    assert asked == [{"device": "float32", "mode": "chained"}] * 2 and near_ties(golden, 0) == set()


def paged(monkeypatch, precision="bfloat16", shown=(), family="p-eagle", ties=None):
    """Rows of layer 1 that may have other pages, of rounds 1 and 2; ties are at position 6 of layer 0's."""
    model = SimpleNamespace(num_drafter_layers=2, family=family)
    golden = SimpleNamespace(manifest=SimpleNamespace(model=model), declared=NAMES)
    view = SimpleNamespace(shows=lambda name: name in shown)
    case = SimpleNamespace(precision=precision)
    run = SimpleNamespace(manifest=SimpleNamespace(case=case), sides=[SimpleNamespace(view=view)])
    ties = {0: {(0, 1, 6)}} if ties is None else ties
    monkeypatch.setattr(hidden_pages, "near_ties", lambda golden, layer: ties.get(layer, set()))

    def unseen(stage: str) -> list[int]:
        rows = rows_of(stage, np.zeros((5, 2)), round_=[1, 1, 1, 2, 2], position=[5, 6, 7, 8, 9])
        return np.flatnonzero(unseen_pages(golden, run, rows)).tolist()

    return unseen


def test_rows_lie_behind_pages_of_their_own_and_in_later_layers_behind_others(monkeypatch):
    unseen = paged(monkeypatch)
    assert unseen("drafter.layers.0.out") == [1] and unseen("drafter.layers.1.out") == [1, 2, 3, 4]
    assert unseen("drafter.logits") == [1, 2, 3, 4] and unseen("kv.drafter.1.k") == [1]
    assert unseen("drafter.fc_out") == unseen("drafter.layers.0.pages") == unseen("target.layers.0.out") == []


def test_in_a_chain_rows_of_the_round_behind_it_are_others_as_well(monkeypatch):
    assert paged(monkeypatch, family="eagle-3")("drafter.layers.0.out") == [1, 2]


def test_what_is_shown_or_float32_is_seen(monkeypatch):
    assert paged(monkeypatch, "float32")("drafter.layers.1.out") == []
    both = [PAGES.format(l=layer) for layer in (0, 1)]
    assert paged(monkeypatch, shown=both)("drafter.layers.1.out") == []
    assert paged(monkeypatch, shown=both[:1], ties={0: {(0, 1, 6)}, 1: {(0, 1, 7)}})("drafter.layers.1.out") == [2]


def test_the_largest_move_of_each_row_of_scores_is_kept(monkeypatch):
    golden = np.zeros((2, 4))
    trials = [{LOGITS: [[3, 4, 0, 0], [0, 0, 0, 0]]}, {LOGITS: [[1, 0, 0, 0], [0, 0, 0, 2]]}]

    def stage_rows(truth, again, named, **how):
        return rows_of(named.name, golden, np.array(again[named.name])) if named.name in again else None

    monkeypatch.setattr(tipped, "stage_rows", stage_rows)
    hidden = SimpleNamespace(truth=SimpleNamespace(declared=NAMES), tipped=lambda prompts: trials)
    assert tipped.moved(hidden, [0]) == {LOGITS: {(0, 0, 5): 2.5, (0, 0, 6): 1.0}, "verify.logits": {}}


@pytest.mark.parametrize(
    ("tokens", "moved", "wrong"),
    [
        ([0, 0], {(0, 0, 5): 0.0, (0, 0, 6): 0.0}, []),
        ([1, 1], {(0, 0, 5): 0.0, (0, 0, 6): 0.0}, [0, 1]),
        ([1, 2], {(0, 0, 5): 0.0, (0, 0, 6): 0.0}, [0]),
        ([1, 1], {(0, 0, 5): 4.0, (0, 0, 6): 0.0}, [1]),
        ([1, 1], {(0, 0, 5): 0.0}, [0]),
        ([3, -1], {(0, 0, 5): 9.0, (0, 0, 6): 9.0}, [0, 1]),
        ([1, 1], {}, []),
    ],
)
def test_a_token_is_wrong_beyond_noise_and_what_close_experts_move(tokens, moved, wrong, monkeypatch):
    """Token 1 scores 3 less than the golden's, token 2 a half; noise explains 1."""
    monkeypatch.setattr(tipped, "row_noise", lambda scores: np.full(2, 1 / NOISE_SIGMAS))
    scores = rows_of(LOGITS, np.array([[5.0, 2.0, 4.5]] * 2))
    rows = rows_of(TOKENS, np.array([0, 0]), np.array(tokens))
    assert np.flatnonzero(tipped.beyond(rows, scores, {LOGITS: moved})).tolist() == wrong
    for other in (None, rows_of(LOGITS, np.zeros((3, 3)))):
        assert not tipped.beyond(rows, other, {LOGITS: moved}).any()
    assert not tipped.beyond(rows_of(TOKENS, np.array([0, 0]), np.array([1.0, 1.0])), scores, {LOGITS: moved}).any()


GRID = Grid("fp8_e4m3", 0.5)


@pytest.fixture
def gridded(monkeypatch):
    """The target's first keys are kept in fp8 times a half."""
    monkeypatch.setattr(quantised, "grids", lambda case, names, stage: {CACHE: GRID} if stage == "kv" else {})
    golden = SimpleNamespace(manifest=SimpleNamespace(case=None), declared=NAMES)
    run = SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(precision="float32")))
    return golden, run


def kept(device, golden=None) -> StageRows:
    device = np.float32(device).reshape(-1, 1, 2)
    golden = device if golden is None else np.float32(golden).reshape(-1, 1, 2)
    return rows_of(CACHE, golden, device, round_=np.arange(len(golden)) % 2)


def test_a_number_that_no_cache_gives_back_is_a_finding(gridded):
    assert off_grid(*gridded, kept([0.5, 1, -2, 0])) == [] == off_grid(*gridded, rows_of(LOGITS, np.ones((1, 2))))
    (found,) = off_grid(*gridded, kept([0.5, 1, -2, 0.51, 0.33, 0]))
    assert (found.kind, found.stage, found.prompt, found.round) == ("off-grid", CACHE, 0, 1)
    assert found.message == (
        f"{CACHE}: 2 of 6 elements are no number of fp8_e4m3 times 0.5, the first at [0, 1] of position 6: 0.51"
    )


def test_a_neighbour_of_the_goldens_number_counts_as_it_where_few_are(gridded):
    """Of 40 numbers two are one in twenty."""
    golden = np.full(40, 1.0)
    for steps, same in ((2, True), (3, False), (0, True)):
        device = golden.copy()
        device[:steps] = 1.125  # the next number
        rows = but_for_steps(gridded[0], kept(device, golden))
        assert (rows.device == 1).all() == same and rows.device.dtype == np.float32
    device = golden.copy()
    device[0], device[1] = 1.125, 4
    assert but_for_steps(gridded[0], kept(device, golden)).device.reshape(-1)[:2].tolist() == [1, 4]
    other = rows_of(LOGITS, np.ones((1, 2)))
    assert but_for_steps(gridded[0], other) is other


@pytest.mark.parametrize(
    ("precision", "settled", "open_"),
    [("float32", [("a", "b")], False), ("float32", [("a",)], True), ("float32", [("a", "b"), ("b",)], True),
     ("bfloat16", [()], False), ("float32", [("b", "a", "c")], False)],
)  # fmt: skip
def test_a_float32_run_settles_every_stage_that_a_cache_is_written_from(precision, settled, open_, monkeypatch):
    stages = {"x": "a", "y": "b"}
    declared_ = {name: SimpleNamespace(stage=SimpleNamespace(template=template)) for name, template in stages.items()}
    monkeypatch.setattr(
        quantised, "grids", lambda case, names, stage: dict.fromkeys(stages) if stage == "layers" else {}
    )
    golden = SimpleNamespace(manifest=SimpleNamespace(case=None), declared=declared_)
    cases = [SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(settled=one))) for one in settled]
    case = SimpleNamespace(precision=precision)
    assert unsettled(golden, SimpleNamespace(manifest=SimpleNamespace(case=case), sides=cases)) is open_


def test_it_is_judged_by_bfloat16s_bounds_of_quantised_caches():
    assert by_noise(CACHE, "chained").judge == "noise" and by_noise(CACHE, "chained").takes(CACHE, "quantised")
    assert by_noise(CACHE, "local").takes(CACHE, "local")
