"""A hypothesis beside the part of a computation that is wrong: how much of the error each explains."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from parity.diagnose import causes, trials
from parity.diagnose.cause import causes_of
from parity.diagnose.ranking import Trial
from parity.diagnose.residuals import Residual
from parity.diagnose.step import DiagnosisStep
from parity.diagnose.trials import PromptTrials, ResidualChange
from parity.stages import declared

Q, IDS, CACHE = "target.layers.0.q", "drafter.draft_tokens", "kv.target.0.k"
FEW = SimpleNamespace(id="few-bits", cost=1, seen=(), part="", fix="", describe=lambda value: "few bits")


def residual(error: float, x: float | None = None) -> Residual:
    return Residual(Q, error > 0.5, error, x, 9.0 * error, None, settled=error <= 0.5)


def trial(left: float) -> Trial:
    return Trial(((FEW, None),), residual(1.0), residual(left))


def step_of(left: float, rough: float | None, x: float | None = None) -> DiagnosisStep:
    """A step whose full trials leave so much, and explain so much by their own bfloat16 run."""
    change = ResidualChange({Q: residual(1.0)}, {Q: residual(left, x)})
    asked = SimpleNamespace(
        rounds=4, contained=True, weigh=lambda *of, **how: change, explained_in_bfloat16=lambda *of: rough
    )
    return DiagnosisStep(asked, (), 4, {Q: residual(1.0)}, residual(1.0))


@pytest.mark.parametrize(
    ("left", "rough", "share"), [(0.1, None, 0.99), (0.1, 0.5, 0.99), (0.8, None, 0.36), (0.8, 0.97, 0.97)]
)
def test_a_trial_explains_what_it_does_over_all_rounds_in_the_precision_that_shows_more(left, rough, share):
    assert step_of(left, rough).explained(trial(0.75)) == pytest.approx(share)


@pytest.mark.parametrize(("share", "named"), [(0.775, False), (0.776, True)])
def test_a_hypothesis_is_the_cause_where_it_explains_four_fifths_of_what_the_part_does(monkeypatch, share, named):
    """The trial alone explains less in the few rounds that it was made over."""
    assert named_beside_a_part(monkeypatch, share, left=0.1) is named


@pytest.mark.parametrize(("share", "left", "named"), [(0.96, 0.56, False), (0.96, 0.55, True), (0.98, 0.56, True)])
def test_what_leaves_many_times_its_bound_is_no_cause_where_a_part_explains_more(monkeypatch, share, left, named):
    """Five times, of what does not settle the stage."""
    assert named_beside_a_part(monkeypatch, share, left, near=True, x=left) is named
    assert named_beside_a_part(monkeypatch, share, left, near=True)  # of choices


@pytest.mark.parametrize(
    ("stage", "red", "leaves"),
    [
        ("target.layers.1.q", True, True),
        ("target.layers.1.q", False, False),
        ("target.layers.1.attn_out", True, False),
        (Q, True, False),
    ],
)
def test_a_hypothesis_may_leave_the_same_kind_of_stage_failing_in_another_layer(stage, red, leaves):
    """A part of that stage which explains more comes before it then."""
    search = causes.CauseSearch.__new__(causes.CauseSearch)
    search.trials = SimpleNamespace(golden=SimpleNamespace(declared=declared(2, 2)))
    after = {stage: replace(residual(1.0), stage=stage, red=red)}
    step = SimpleNamespace(full=lambda trial: SimpleNamespace(after=after))
    assert search._leaves_alike(step, residual(1.0), None) == leaves


def named_beside_a_part(monkeypatch, share: float, left: float, near: bool = False, x: float | None = None) -> bool:
    """Whether a trial that explains and leaves so much is named, beside a part that leaves nothing."""
    made = trial(0.75)
    fake = step_of(left, None, x)
    monkeypatch.setattr(type(fake), "explained", lambda self, of: share)
    monkeypatch.setattr(type(fake), "holds", lambda self, of: True)
    monkeypatch.setattr(type(fake), "nearest", lambda self, made: made[0])
    found = None if near else made, [made]
    monkeypatch.setattr(causes, "HypothesisSearch", lambda *of: SimpleNamespace(best=lambda *of: found))
    search = causes.CauseSearch.__new__(causes.CauseSearch)
    search.trials, search.hypotheses, search.known, search.rounds = fake.trials, (), (), 4
    search.causes, search.read, search.left = [], {Q}, {Q: residual(1.0)}
    search.parts, search.aside = {Q: SimpleNamespace(whole=True, explained=0.97, says="a part")}, set()
    monkeypatch.setattr(search, "_refitted", lambda first: False)
    monkeypatch.setattr(search, "_is_the_references", lambda residual: False)
    monkeypatch.setattr(search, "_unwritten", lambda stage: "")
    monkeypatch.setattr(search, "_left_in_caches", lambda stage: [CACHE])

    named = search._name_cause(residual(1.0))
    assert [cause.hypothesis for cause in search.causes] == ["few-bits"] * named
    return named


@pytest.mark.parametrize(
    ("aside", "says", "asked"), [({"target.layers.0.k"}, "a part", False), ({Q}, "a part", True), (set(), "b", True)]
)
def test_a_part_that_another_stage_has_without_a_name_is_not_asked_for_one_again(monkeypatch, aside, says, asked):
    search, names = causes.CauseSearch.__new__(causes.CauseSearch), []
    search.trials, search.hypotheses, search.known, search.rounds = step_of(0.1, None).trials, (), (), 4
    search.causes, search.read, search.left, search.aside = [], {Q}, {Q: residual(1.0)}, aside
    search.parts = {one: SimpleNamespace(whole=True, says="a part") for one in (Q, "target.layers.0.k")}
    search.parts[Q].says = says
    monkeypatch.setattr(search, "_refitted", lambda first: False)
    monkeypatch.setattr(search, "_told_of", lambda stage: [])
    monkeypatch.setattr(search, "_is_told", lambda stage: True)
    made = SimpleNamespace(best=lambda *of: (names.append(of), (None, []))[1])
    monkeypatch.setattr(causes, "HypothesisSearch", lambda *of: made)

    assert search._name_cause(residual(1.0)) is False and bool(names) is asked


@pytest.mark.parametrize("explained", [True, False])
def test_a_further_stage_of_a_kind_is_searched_where_a_cause_explains_what_is_told_of_the_first(monkeypatch, explained):
    """Two layers whose windows are exchanged are two causes."""
    first, behind = "target.layers.0.attn_out", "target.layers.1.attn_out"
    search, asked = causes.CauseSearch.__new__(causes.CauseSearch), []
    search.trials = SimpleNamespace(golden=SimpleNamespace(declared=declared(2, 2)))
    search.hypotheses, search.known, search.rounds, search.read, search.left = (), (), 4, {first}, {}
    search.parts = {first: SimpleNamespace(whole=True, explained=0.97)}
    search.causes = [SimpleNamespace(stage=first)] if explained else []
    monkeypatch.setattr(search, "_refitted", lambda first: False)
    monkeypatch.setattr(search, "_take_apart", asked.append)
    monkeypatch.setattr(search, "_is_told", lambda stage: False)
    nothing = SimpleNamespace(best=lambda *of: (None, []))
    monkeypatch.setattr(causes, "HypothesisSearch", lambda *of: nothing)

    assert search._name_cause(replace(residual(1.0), stage=behind)) is False
    assert [one.stage for one in asked] == [behind] * explained


@pytest.mark.parametrize(
    ("precision", "device", "share"),
    [("bfloat16", [1.0, 1.5], 1.0), ("bfloat16", [1.0, 1.25], 0.0), ("float32", [1.0, 1.5], None)],
)
def test_the_share_beside_a_bfloat16_run_is_of_the_squared_error(monkeypatch, precision, device, share):
    true, rough = ({(0, Q): np.asarray(value, np.float32)} for value in ([1.0, 1.0], [1.0, 1.5]))
    monkeypatch.setattr(trials, "contents_of", lambda run, variant: {(0, Q): np.asarray(device, np.float32)})
    asked = SimpleNamespace(
        cut=lambda rounds: (None, SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(precision=precision)))),
        _tensors=lambda *of, precision: SimpleNamespace(tensors=rough),
        _baseline=lambda *of: (true, {}),
    )
    # Of the second device: 0.25 off the true value, and 0.25 off the run's, whose larger numbers explain nothing.
    assert PromptTrials.explained_in_bfloat16(asked, (), ((FEW, None),), 4, Q) == share


@pytest.mark.parametrize(
    ("stages", "layered", "value", "doubted"),
    [
        ((Q, "target.layers.*.attn_out"), True, "all", True),
        ((Q, "target.layers.*.attn_out"), True, 1, True),
        ((Q, "target.layers.*.attn_out"), True, 0, False),
        ((Q, "target.layers.*.attn_out"), True, (1, 3), True),
        ((Q, "target.layers.*.attn_out"), True, (0, 3), False),
        ((Q,), False, None, False),
    ],
)
def test_a_cause_is_in_doubt_where_a_further_stage_that_it_shows_at_fails_with_it(stages, layered, value, doubted):
    behind = "target.layers.1.attn_out"
    hypothesis = SimpleNamespace(**vars(FEW) | {"stages": stages, "layered": layered})
    search = causes.CauseSearch.__new__(causes.CauseSearch)
    search.trials = SimpleNamespace(golden=SimpleNamespace(declared={behind: SimpleNamespace(layer=1)}))
    search.known = ((hypothesis, value),)
    search.causes = causes_of(Trial(search.known, residual(1.0), residual(0.0)), residual(1.0), {}, [], True)

    search._doubt(behind)

    says = f"it shows at {behind} as well, which fails with it all the same" if doubted else ""
    assert [cause.doubted for cause in search.causes] == [says]
    search._doubt(Q)  # its own stage, which may be explained to a part
    assert search.causes[0].doubted == says


@pytest.mark.parametrize(
    ("stage", "device", "doubted"),
    [(IDS, [0, 0, 7], True), (IDS, [0, 3, 7], False), (IDS, [5, 6, 7], False), (Q, [0, 0, 7], False)],
)
def test_ids_of_an_empty_buffer_leave_every_cause_in_doubt(monkeypatch, stage, device, doubted):
    """The golden's are 5, 6, 7; a head of zeros chooses the id 0 as well."""
    search = causes.CauseSearch.__new__(causes.CauseSearch)
    search.rounds, golden = 1, SimpleNamespace(declared=declared(1, 1), keeps=False)
    search.trials = SimpleNamespace(cut=lambda rounds: (golden, None))
    rows = SimpleNamespace(golden=np.array([5, 6, 7]), device=np.array(device))
    monkeypatch.setattr(causes, "stage_rows", lambda *of: rows)
    assert bool(search._unwritten(stage)) == doubted


@pytest.mark.parametrize(
    ("of", "whole", "told"), [(Q, True, True), (CACHE, True, True), (CACHE, False, False), (IDS, True, False)]
)
def test_a_stage_is_told_by_a_part_of_its_own_or_by_a_failing_cache_that_it_reads(monkeypatch, of, whole, told):
    search = causes.CauseSearch.__new__(causes.CauseSearch)
    search.parts = {of: SimpleNamespace(whole=whole)}
    monkeypatch.setattr(search, "_left_in_caches", lambda stage: [CACHE])
    assert search._is_told(Q) == told
