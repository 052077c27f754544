"""Hidden experts by hand: limits and errors of rows, which choices are close, and what is tried in which order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import hidden_experts
from parity.compare.hidden_experts import FINER, PATIENCE, SUSPECT, TIPPING, TRIALS, ExpertChoice, HiddenExperts, swaps
from parity.compare.rows import StageRows
from parity.compare.scores import NOISE_SIGMAS
from parity.errors import UsageError
from parity.stages import declared

NAMES = declared(2, 1)
OUT, ROUTER, EXPERTS = "target.layers.1.out", "target.layers.1.router_logits", "target.layers.1.experts"
TOKENS, LOGITS = "target.tokens", "target.logits"


def stage(name: str, golden, device=None, floor=None, prompt=(0, 0, 1), round_=(0, 1, 1), position=(7, 8, 9)):
    golden = np.asarray(golden, np.float32)
    sides = [np.asarray(golden if side is None else side) for side in (device, floor)]
    labels = (np.array(part) for part in (prompt, round_, position))
    return StageRows(NAMES[name], golden, *sides, *labels)


@pytest.fixture
def search(monkeypatch):
    """A search in which stages have these rows, of a run in bfloat16 or float32; experts of layer 1 are hidden."""

    def make(rows: dict[str, StageRows], precision: str = "bfloat16", **more) -> HiddenExperts:
        made = HiddenExperts.__new__(HiddenExperts)
        case = SimpleNamespace(mode="chained", precision=precision)
        made.run = SimpleNamespace(manifest=SimpleNamespace(case=case), folder=Path("/run"))
        made.truth = SimpleNamespace(declared=NAMES, folder=Path("/golden"), **more)
        made.fine, made.hidden, made.shown = precision == "float32", [1], [NAMES[OUT]]
        made.chosen, made.tried, made.unresolved, made._noises = {}, set(), [], {}
        asked = []

        def stage_rows(golden, run, named, **how):
            asked.append((named.name, how))
            return rows.get(named.name)

        monkeypatch.setattr(hidden_experts, "stage_rows", stage_rows)
        made.asked = asked
        return made

    return make


FOURS = np.full((3, 4), 4.0)
SPOTS = [(0, 0, 7), (0, 1, 8), (1, 1, 9)]


def off(*by: float) -> np.ndarray:
    """Rows of norm 8, the first element of each off by this."""
    rows = FOURS.copy()
    rows[:, 0] += by
    return rows


def test_a_row_is_suspect_beyond_twice_its_noise_which_is_no_lucky_roundings(search):
    """Floors of 0.1, 0.2 and 0.4: nine tenths of the way lie at 0.36."""
    limits = search({OUT: stage(OUT, FOURS, floor=off(0.8, 1.6, 3.2))})._limits(NAMES[OUT])
    assert limits == pytest.approx(dict(zip(SPOTS, (0.72, 0.72, 0.8), strict=True))) and SUSPECT == 2


def test_a_floor_of_a_row_of_zeros_is_no_division(search):
    limits = search({OUT: stage(OUT, FOURS * 0, floor=FOURS * 0)})._limits(NAMES[OUT])
    assert set(limits) == {*SPOTS} and all(0 < limit < 0.01 for limit in limits.values())


def test_in_float32_the_limit_is_what_its_sums_round(search):
    found = search({OUT: stage(OUT, FOURS, floor=off(0.8, 1.6, 3.2))}, "float32")
    assert found._limits(NAMES[OUT]) == dict.fromkeys(SPOTS, 3e-5)
    assert found.asked == [(OUT, {"device": "float32", "mode": "chained"})]


@pytest.mark.parametrize(("precision", "share"), [("bfloat16", 1.0), ("float32", FINER)])
def test_a_token_is_suspect_beyond_the_noise_of_its_logits(search, monkeypatch, precision, share):
    monkeypatch.setattr(hidden_experts, "row_noise", lambda rows: np.arange(1.0, 4) * (rows.named.name == LOGITS))
    found = search({LOGITS: stage(LOGITS, FOURS)}, precision)
    due = [NOISE_SIGMAS * share * number for number in (1, 2, 3)]
    assert found._limits(NAMES[TOKENS]) == pytest.approx(dict(zip(SPOTS, due, strict=True))) and FINER == 2**-16


def test_where_nothing_is_shown_there_is_neither_limit_nor_error(search):
    found = search({})
    assert found._limits(NAMES[OUT]) == found._errors(None, NAMES[OUT]) == found._router_noise(1) == {}
    found = search({TOKENS: stage(TOKENS, [1, 2, 3], device=np.array([1, 2, 3]))})
    assert found._errors(SimpleNamespace(declared=NAMES), NAMES[TOKENS]) == {}


def test_an_error_is_relative_to_the_goldens_row(search):
    found = search({OUT: stage(OUT, FOURS, device=off(0.8, 0, -3.2))})
    assert found._errors(None, NAMES[OUT]) == pytest.approx(dict(zip(SPOTS, (0.1, 0, 0.4), strict=True)))


def test_an_error_of_a_token_is_how_far_its_score_is_below_the_best(search):
    """A token that has no score, and a row that has none, have no error."""
    scores = stage(LOGITS, [[1, 4, 2], [5, 3, 0]], prompt=(0, 0), round_=(0, 1), position=(7, 8))
    basis = SimpleNamespace(declared=NAMES)

    def errors(*tokens) -> dict:
        found = search({LOGITS: scores, TOKENS: stage(TOKENS, [0, 0, 0], device=np.array(tokens))})
        return found._errors(basis, NAMES[TOKENS])

    assert errors(0, 0, 0) == {SPOTS[0]: 3.0, SPOTS[1]: 0.0}
    assert errors(1, 2, 0) == {SPOTS[0]: 0.0, SPOTS[1]: 5.0}
    assert errors(2, 3, 0) == {SPOTS[0]: 2.0} and errors(-1, 1, 0) == {SPOTS[1]: 2.0}


def test_a_row_is_bad_beyond_its_limit_or_where_it_is_no_number(search):
    found = search({OUT: stage(OUT, FOURS, device=off(0.8, 1.6, np.nan))})
    found.limits = {OUT: {SPOTS[0]: 0.1, SPOTS[1]: 0.19, SPOTS[2]: 9.0}}
    errors = found._errors(None, NAMES[OUT])
    found.limits[OUT][SPOTS[0]] = errors[SPOTS[0]]
    assert found._bad(None, NAMES[OUT]) == SPOTS[1:]
    del found.limits[OUT][SPOTS[1]]  # nothing says how much is too much
    assert found._bad(None, NAMES[OUT]) == SPOTS[2:]


@pytest.mark.parametrize(
    ("before", "after", "nearer"),
    [(1.0, 0.8, True), (1.0, 0.81, False), (0.5, 0.4, True), (None, 0, False), (1, None, False)],
)
def test_a_choice_is_taken_that_leaves_four_fifths_of_the_error_at_the_most(search, monkeypatch, before, after, nearer):
    found = search({})
    errors = {
        "before": {} if before is None else {SPOTS[0]: before},
        "after": {} if after is None else {SPOTS[0]: after},
    }
    monkeypatch.setattr(found, "_errors", lambda basis, named: errors[basis])
    assert found._nearer("before", "after", OUT, SPOTS[0]) is nearer


def test_a_rows_number_in_its_pass_stands_beside_the_regret_that_noise_explains(search, monkeypatch):
    """Two rows of prompt 0's prefill, two of its first round, two of prompt 1's."""
    labels = {"prompt": (0, 0, 0, 0, 1, 1), "round_": (0, 0, 1, 1, 1, 1), "position": (5, 6, 7, 8, 7, 8)}
    monkeypatch.setattr(hidden_experts, "row_noise", lambda rows: np.arange(6.0))
    rows = {ROUTER: stage(ROUTER, np.zeros((6, 4)), **labels)}
    found = search(rows)
    spots = list(zip(*labels.values(), strict=True))
    due = {spot: (n % 2, NOISE_SIGMAS * n) for n, spot in enumerate(spots)}
    assert found._router_noise(1) == due and found._router_noise(1) is found._noises[1] and len(found.asked) == 1
    fine = search(rows, "float32")._router_noise(1)
    assert fine == {spot: (row, limit * FINER) for spot, (row, limit) in due.items()}


def test_of_close_choices_four_are_tried_the_closest_first():
    scores = np.array([5.0, 4.0, 3.9, 3.8, 3.7, 3.6, 3.5])
    near = swaps(scores, (0, 1), 9.0)
    assert [experts for experts, _ in near] == [(0, 2), (0, 3), (0, 4), (0, 5)]
    assert [regret for _, regret in near] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert swaps(np.array([2.0, 1.0, 0.5]), (1, 0), 0.5) == [((2, 0), 0.5)]  # at the limit, in the place of its own
    assert swaps(np.array([2.0, 1.0]), (0, 1), 9.0) == []


def test_choices_of_a_row_are_by_the_scores_of_the_basis_and_what_was_chosen_before(search):
    found = search({}, contents=lambda *place: np.array([[9, 9], [0, 1]]))
    found._noises = {1: {SPOTS[1]: (1, 0.25)}}
    scores = np.array([[0.0, 0, 0], [3.0, 2.0, 1.9]], np.float32)
    basis = SimpleNamespace(contents=lambda *place: scores if place == ("float32", 0, 1, ROUTER) else None)
    place = ("bfloat16", 0, 1, EXPERTS)
    (choice,) = found._choices(basis, [1], SPOTS[1])
    assert choice == ExpertChoice(place, 1, (0, 2), pytest.approx(0.1))
    found.chosen = {place: {1: (0, 2)}}
    assert [one.experts for one in found._choices(basis, [1], SPOTS[1])] == [(0, 1)]
    assert [*found._choices(basis, [1], SPOTS[0])] == []  # a row of which nothing says how noisy it is
    assert [*found._choices(SimpleNamespace(contents=lambda *place: None), [1], SPOTS[1])] == []


def test_earlier_rows_are_tried_last_where_the_prefill_shows_none_of_its_own(search, monkeypatch):
    found, place = search({}), ("bfloat16", 0, 0, EXPERTS)

    def choices(basis, layers, spot):
        prompt, round_, at = spot
        margins = {9: (0.3, 0.1), 0: (0.2,), 8: (0.05,)}.get(at, ()) if (prompt, round_ <= 1) == (0, True) else ()
        return [ExpertChoice(place, at, (round_,), margin) for margin in margins]

    monkeypatch.setattr(found, "_choices", choices)
    told = {"all": "last"}
    found.run.view = SimpleNamespace(rows=lambda name, round_: told["all"] if round_ == 0 else "all")

    def tried(layers) -> list[tuple[int, int, float]]:
        return [(one.row, *one.experts, one.margin) for one in found._untried(None, layers, (0, 1, 9))]

    assert found.blind_prefill and tried([0, 1]) == [(9, 1, 0.1), (9, 1, 0.3), (8, 0, 0.05), (0, 0, 0.2)]
    assert tried([1]) == [(9, 1, 0.1), (9, 1, 0.3)]
    found.tried = {ExpertChoice(place, 9, (1,), 0.1), ExpertChoice(place, 8, (0,), 0.05)}
    assert tried([0, 1]) == [(9, 1, 0.3), (0, 0, 0.2)]
    told["all"] = "all"
    assert not found.blind_prefill and tried([0, 1]) == [(9, 1, 0.3)]


@pytest.mark.parametrize(("golden", "run"), [(True, False), (False, True)])
def test_a_sketch_on_either_side_is_refused_and_best_logits_are_not(search, monkeypatch, golden, run):
    found = search({}, keeps=golden)
    found.run.keeps = run
    sketch, best, whole = (SimpleNamespace(form=SimpleNamespace(sketch=s, top=t)) for s, t in ((8, 0), (8, 4), (0, 0)))

    def kept(*sides):
        monkeypatch.setattr(hidden_experts, "held", lambda *of: [SimpleNamespace(sides=sides)])
        return found._refuse_sketches()

    for sides in ((sketch, whole, whole), (whole, sketch, whole)):
        with pytest.raises(UsageError, match=rf"of {OUT} a sketch is kept \(golden /golden\): show the experts"):
            kept(*sides)
    assert kept(best, best, sketch) is kept(whole, whole, whole) is None
    found.truth.keeps = found.run.keeps = False
    assert kept(sketch, sketch) is None


def test_a_layer_that_knows_nothing_of_a_row_hides_no_later_one(search):
    found = search({}, contents=lambda *place: np.array([[0, 1]]))
    found._noises = {0: {}, 1: {SPOTS[1]: (0, 0.25)}}
    basis = SimpleNamespace(contents=lambda *place: np.array([[3.0, 2.0, 1.9]], np.float32))
    assert [one.place[3] for one in found._choices(basis, [0, 1], SPOTS[1])] == [EXPERTS]


def choice(row: int, expert: int = 0, margin: float = 0.1, prompt: int = 0, round_: int = 1) -> ExpertChoice:
    return ExpertChoice(("bfloat16", prompt, round_, EXPERTS), row, (expert,), margin)


@pytest.fixture
def inferring(search, monkeypatch):
    """An inference of scripted picks, by how often it asked, of which some are taken; what it did is in `done`."""

    def make(picks, taken=lambda count, row: True, blind: bool = False) -> HiddenExperts:
        found = search({})
        found.done = []

        def picked(basis):
            found.done.append(("picks", basis if isinstance(basis, str) else "truth"))
            count = sum(what == "picks" for what, _ in found.done) - 1
            return {(OUT, (0, 1, one.row)): one for one in picks(count)}

        def again(chosen):
            found.done.append(("again", sorted(row for rows in chosen.values() for row in rows)))
            return f"run {sum(what == 'again' for what, _ in found.done)}"

        def nearer(basis, trial, stage, spot) -> bool:
            return stage == OUT and taken(sum(what == "picks" for what, _ in found.done) - 1, spot[2])

        for name, does in (("picks", picked), ("again", again), ("_nearer", nearer)):
            monkeypatch.setattr(found, name, does)
        monkeypatch.setattr(found, "_assuming", lambda chosen: chosen)
        monkeypatch.setattr(HiddenExperts, "blind_prefill", blind)
        return found

    return make


def runs(found: HiddenExperts) -> list[list[int]]:
    """The rows of which choices were tried, run by run."""
    return [rows for what, rows in found.done if what == "again"]


@pytest.mark.parametrize("blind", [False, True])
def test_where_no_row_asks_for_other_experts_none_are_inferred(inferring, blind):
    found = inferring(lambda count: [], blind=blind)
    assert found.infer() is None and found.unresolved == [] and found.done == [("picks", "truth")]


def test_choices_that_come_nearer_are_taken_and_the_next_are_sought_beside_them(inferring):
    found = inferring(lambda count: [[choice(3), choice(4)], [choice(5)], []][count])
    due = {("bfloat16", 0, 1, EXPERTS): {3: (0,), 4: (0,), 5: (0,)}}
    assert found.infer() == found.chosen == due and runs(found) == [[3, 4], [3, 4, 5]]
    assert [basis for what, basis in found.done if what == "picks"] == ["truth", "run 1", "run 2"]
    assert found.tried == {choice(3), choice(4), choice(5)}


def test_where_some_come_no_nearer_the_reference_runs_again_without_them(inferring):
    found = inferring(lambda count: [[choice(3), choice(4)], []][count], lambda count, row: row == 4)
    assert found.infer() == {("bfloat16", 0, 1, EXPERTS): {4: (0,)}} and runs(found) == [[3, 4], [4]]
    assert [basis for what, basis in found.done if what == "picks"] == ["truth", "run 2"]


@pytest.mark.parametrize("blind", [False, True])
def test_four_runs_in_a_row_that_explain_nothing_are_the_last(inferring, blind):
    found = inferring(lambda count: [choice(count)], lambda count, row: False, blind)
    assert found.infer() is None and runs(found) == [[0], [1], [2], [3]] and PATIENCE == 4
    assert found.unresolved == ([choice(4)] if blind else [])  # what was not tried, where no prefill shows it
    found = inferring(lambda count: [choice(count)], lambda count, row: count == 2, blind)
    assert found.infer() == {("bfloat16", 0, 1, EXPERTS): {2: (0,)}} and len(runs(found)) == 2 + 1 + 4


def test_what_is_left_behind_the_last_run_is_unresolved(inferring):
    found = inferring(lambda count: [choice(count)])
    assert len(found.infer()["bfloat16", 0, 1, EXPERTS]) == TRIALS == 64 and len(runs(found)) == TRIALS
    assert found.unresolved == [choice(TRIALS)]


def test_close_choices_are_tipped_twice_the_closest_of_a_row_alone(search, monkeypatch):
    found, asked = search({}), []
    found.chosen = {("bfloat16", 0, 1, EXPERTS): {9: (7,)}}
    each = [[choice(3, 1, 0.2), choice(3, 2, 0.1), choice(4, 3, 0.3)], [choice(3, 4), choice(5, 5)], [choice(6, 6)]]

    def close(basis, prompts, chosen):
        asked.append((basis if isinstance(basis, str) else "truth", prompts))
        return each[len(asked) - 1]

    monkeypatch.setattr(found, "close", close)
    monkeypatch.setattr(found, "again", lambda chosen: f"run with {sorted(chosen.popitem()[1].items())}")
    first, second = "run with [(3, (2,)), (4, (3,)), (9, (7,))]", "run with [(3, (4,)), (5, (5,))]"
    assert [*found.tipped([0, 2])] == [first, second] and TIPPING == 2
    assert asked == [("truth", [0, 2]), (first, [0, 2])]
    each[0] = []
    asked.clear()
    assert [*found.tipped([0])] == []


def test_close_choices_are_those_of_the_prompts_rows_of_which_nothing_is_chosen(search, monkeypatch):
    found = search({})
    found.hidden = [0, 1]
    found._noises = {layer: dict.fromkeys(SPOTS, (0, 0.0)) for layer in (0, 1)}
    made = {spot: choice(spot[2], prompt=spot[0], round_=spot[1]) for spot in SPOTS}
    monkeypatch.setattr(found, "_choices", lambda basis, layers, spot: [made[spot]] if layers == [1] else [])
    assert found.close(None, [0], {}) == [made[SPOTS[0]], made[SPOTS[1]]]
    assert found.close(None, [0], {made[SPOTS[1]].place: {8: (9,), 7: (9,)}}) == [made[SPOTS[0]]]
    assert found.close(None, [1], {}) == [made[SPOTS[2]]] and found.close(None, [2], {}) == []


DEEP = declared(4, 1)


@pytest.fixture
def picking(search, monkeypatch):
    """What is picked of two shown layers where these rows are bad and these layers have a choice for them."""

    def pick(hidden, bad, offers) -> tuple[list, list]:
        found, asked = search({}), []
        found.hidden, found.shown = hidden, [DEEP[f"target.layers.{layer}.out"] for layer in (1, 3)]

        def untried(basis, layers, spot):
            asked.append((spot, layers))
            return iter([choice(spot[2])] if any((layer, spot) in offers for layer in layers) else [])

        monkeypatch.setattr(found, "_bad", lambda basis, named: bad.get(named.layer, []))
        monkeypatch.setattr(found, "_untried", untried)
        return [(int(stage.split(".")[2]), spot) for stage, spot in found.picks(None)], asked

    return pick


A, B, OTHER = (0, 1, 8), (0, 1, 9), (1, 1, 8)
"""Two rows of a round, and one of another prompt's."""


@pytest.mark.parametrize(
    ("hidden", "bad", "offers", "picks"),
    [
        (
            [1, 3],
            {1: [B, A, OTHER]},
            [(1, A), (1, B), (1, OTHER)],
            [(1, A), (1, B), (1, OTHER)],
        ),  # one layer: every row
        ([0, 1], {1: [B, A, OTHER]}, [(1, A), (1, B), (1, OTHER)], [(1, A), (1, OTHER)]),  # two: one at a time
        ([0, 1], {1: [B, A]}, [(0, B)], [(1, B)]),  # the first that another choice may explain
        ([1, 3], {1: [A], 3: [A, B, OTHER]}, [(1, A), (3, A), (3, B), (3, OTHER)], [(1, A), (3, OTHER)]),
        ([1, 3], {1: [A], 3: [A, B]}, [(3, A), (3, B)], [(3, A), (3, B)]),  # nothing explains the first stage's
        ([1, 3], {3: [A, B, OTHER]}, [(1, A), (1, B), (1, OTHER)], [(3, A), (3, OTHER)]),  # further back
        ([1, 3], {3: [A, B]}, [(3, A), (1, B)], [(3, A), (3, B)]),
        ([1, 2, 3], {3: [A, B]}, [(3, A), (3, B)], [(3, A)]),
        ([0], {3: [A]}, [(0, A)], [(3, A)]),
        ([3], {1: [A]}, [(3, A)], []),  # a later layer explains nothing
        ([1, 3], {}, [(1, A)], []),
    ],
)
def test_the_first_stage_of_a_round_with_bad_rows_that_a_choice_may_explain_is_picked(
    picking, hidden, bad, offers, picks
):
    assert picking(hidden, bad, offers)[0] == picks


def test_the_layers_since_the_stage_before_are_asked_and_then_those_further_back(picking):
    assert picking([0, 1, 2, 3], {1: [A], 3: [A]}, [])[1] == [(A, [0, 1]), (A, [2, 3]), (A, [0, 1])]
    assert picking([0, 1], {3: [A]}, [])[1] == [(A, [0, 1])]


def test_a_run_with_other_experts_has_the_goldens_everywhere_else(search, monkeypatch):
    places = [
        (variant, prompt, 1, stage)
        for variant, stages in (("float32", (EXPERTS, "target.layers.0.experts", OUT)), ("bfloat16", (OUT,)))
        for prompt in (0, 1)
        for stage in stages
    ]
    found = search({}, contents=lambda variant, *place: np.array([[1, 2], [3, 4]]) + 10 * place[0])
    found.truth.rows = places
    made, asked = [], []
    monkeypatch.setattr(
        hidden_experts, "WithTensors", lambda run, truth, experts: made.append((run, experts)) or "with"
    )
    monkeypatch.setattr(hidden_experts, "Overlaid", lambda truth, again, prompts: (again, prompts))
    found.rerun = lambda run, prompts: asked.append((run, prompts)) or "again"
    of = ("bfloat16", 1, 1, EXPERTS)
    assert found.again({of: {1: (7, 8)}}) == ("again", [1]) and asked == [("with", [1])]
    ((run, experts),) = made
    assert run is found.run and {place: ids.tolist() for place, ids in experts.items()} == {
        ("bfloat16", 0, 1, EXPERTS): [[1, 2], [3, 4]],
        of: [[11, 12], [7, 8]],
    }
    assert found.assuming([ExpertChoice(of, 0, (5, 6), 0.0)]) == "with"
    assert made[1][1][of].tolist() == [[5, 6], [13, 14]] and found.chosen == {}


def test_what_is_shown_is_asked_in_the_order_data_flows_in_a_prefill_then_in_a_round(monkeypatch):
    names = ("verify.logits", "target.logits", "target.embed", OUT)
    places = {(False, "target.logits"): 40, (False, OUT): 20, (True, "verify.logits"): 30, (True, OUT): 50}
    monkeypatch.setattr(hidden_experts, "order", lambda truth: places)
    monkeypatch.setattr(hidden_experts, "hidden_layers", lambda truth, run: [1])
    monkeypatch.setattr(HiddenExperts, "_limits", lambda self, named: {SPOTS[0]: 1.0})
    side = SimpleNamespace(keeps=False, declared=NAMES, folder=Path("/golden"))
    side.manifest = SimpleNamespace(stages=names, case=SimpleNamespace(precision="float32"))
    made = HiddenExperts(side, side, lambda run, prompts: run)
    assert [named.name for named in made.shown] == ["target.embed", OUT, "verify.logits", "target.logits"]
    assert made.fine and made.hidden == [1] and made.limits == {name: {SPOTS[0]: 1.0} for name in names}
