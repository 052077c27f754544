"""What speaks against a free run's tokens, by hand: its own choices, its scores, the numbers that decided them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import generation
from parity.compare.generation import (
    Generations,
    _overrun,
    _parted,
    _resampled,
    _unchosen,
    _undrawn,
    check_generation,
    unseen_text,
)
from parity.compare.rows import StageRows
from parity.compare.sampling import judging
from parity.compare.scores import NOISE_SIGMAS
from parity.compare.structure import Finding
from parity.errors import UsageError
from parity.golden.case import Generation
from parity.stages import declared

NAMES = declared(2, 1)
DRAFTS, TARGET, VERIFY = "drafter.draft_tokens", "target.tokens", "verify.tokens"
AT = (4, "p")


def told(emitted, lengths, accepted=None, finish: str = "length") -> Generation:
    counts = tuple(length - 1 for length in lengths) if accepted is None else accepted
    return Generation(emitted=tuple(emitted), acceptance_length=lengths, accepted_drafts=counts, finish=finish)


TRUE = told((5, 6, 7, 8, 9, 10, 11), (2, 1, 3))
"""Round 1 accepts one draft, round 2 none, round 3 two."""


def pair(own: Generation, true: Generation = TRUE) -> Generations:
    return Generations(*AT, true, own)


def dump(*generations, precision: str = "float32", sides: int = 1, contents=lambda *place: None, **more):
    prompts = [SimpleNamespace(id=f"p{at}", generation=one) for at, one in enumerate(generations)]
    case = SimpleNamespace(prompts=prompts, precision=precision, **{"max_new_tokens": 9, "draws": False, **more})
    view = SimpleNamespace(shows=lambda stage: True)
    return SimpleNamespace(
        manifest=SimpleNamespace(case=case), sides=(None,) * sides, contents=contents, view=view, declared=NAMES
    )


@pytest.fixture
def judges(monkeypatch):
    """What a free run is judged by, in place of which its name is found."""

    def finds(name: str):
        found = Finding("generation", name, 0, 0, name)
        return lambda *of: iter([((f"{name}.s",), found)] if name in ("_differences", "_resampled") else [found])

    for name in ("_undrawn", "_unchosen", "_miscounted", "_differences", "_resampled"):
        monkeypatch.setattr(generation, name, finds(name))
    monkeypatch.setattr(generation, "in_doubt", lambda name, golden: False)


@pytest.mark.parametrize(
    ("draws", "due"), [(False, ["_differences", "_unchosen", "_miscounted"]), (True, ["_resampled", "_undrawn"])]
)
def test_numbers_that_decide_are_asked_where_tokens_are_drawn(judges, monkeypatch, draws, due):
    golden = dump(TRUE, draws=draws)
    assert [one.stage for one in check_generation(golden, dump(TRUE)).findings] == due
    for doubted in (f"{due[0]}.s", TARGET, VERIFY):
        monkeypatch.setattr(generation, "in_doubt", lambda name, golden, doubted=doubted: name == doubted)
        found = check_generation(golden, dump(TRUE))
        assert ([one.stage for one in found.set_aside], [one.stage for one in found.findings]) == (due[:1], due[1:])


def test_a_prompt_that_emits_nothing_is_told_and_the_next_one_is_judged(judges):
    found = check_generation(dump(TRUE, TRUE), dump(None, TRUE)).findings
    assert [one.stage for one in found] == ["accept.emitted", "_differences", "_unchosen", "_miscounted"]
    assert (found[0].prompt, found[0].round) == (0, 0)
    assert found[0].message == "prompt p0: the free run emits nothing, of other prompts it does"
    assert not check_generation(dump(TRUE), dump(None)).findings
    with pytest.raises(UsageError, match="prompt p1 has no generation"):
        check_generation(dump(TRUE, None), dump(TRUE, TRUE))


def test_what_ends_a_text_is_the_last_token_of_one_that_no_budget_ended(judges):
    ended, long = told((5, 9), (1,), finish="eos"), told((5, 9, 1), (1, 1))
    behind = "prompt p0: the free run continues behind token 9, which ends a text"
    assert next(one.message for one in check_generation(dump(long, ended), dump(long, ended)).findings) == behind
    assert behind not in [one.message for one in check_generation(dump(long, long), dump(long, long)).findings]


@pytest.mark.parametrize(
    ("emitted", "budget", "ends", "said"),
    [
        ((5, 6, 7), 3, (), None),
        ((5, 6, 7), 2, (), "emits 3 tokens of a budget of 2"),
        ((5, 6, 7), 9, (7,), None),
        ((5, 6, 7), 9, (6,), "continues behind token 6, which ends a text"),
        ((5, 6, 7, 6), 9, (6, 7), "continues behind token 6, which ends a text"),
        ((5, 6, 7, 8, 9, 10, 11, 1), 9, (), "continues behind the reference's 7 tokens, which end the text"),
        ((5, 6, 7, 8, 9, 10, 12, 1), 9, (), None),
        ((5, 6, 7, 8, 9, 10, 11), 9, (), None),
    ],
)
def test_tokens_behind_the_end_of_a_text_are_told(emitted, budget, ends, said):
    found = [*_overrun(pair(told(emitted, (1, 1))), budget, ends)]
    due = [] if said is None else [Finding("generation", "accept.emitted", 4, 2, f"prompt p: the free run {said}")]
    assert found == due


def resampled(own: Generation, true: dict, seen: dict) -> bool:
    """Whether a difference is told, of a golden and a run with these choices by stage and round."""

    def of(held: dict, variant: str):
        def contents(named, prompt, round_, stage):
            assert (named, prompt) == (variant, 4)
            return None if (stage, round_) not in held else np.array(held[stage, round_])

        return contents

    golden, run = dump(contents=of(true, "float32")), dump(contents=of(seen, "bfloat16"), precision="bfloat16")
    found = [*_resampled(golden, run, pair(own))]
    assert all(finding.message.startswith("prompt p: the free run ends after") for _, finding in found)
    return bool(found)


CUT = {1: told((5, 6), (1,), finish="eos"), 2: told((5, 6, 7), (2,), finish="eos"),
       3: told((5, 6, 7, 8, 9), (2, 1, 1), finish="eos")}  # fmt: skip


@pytest.mark.parametrize("stage", [DRAFTS, VERIFY])
@pytest.mark.parametrize(("round_", "deciding"), [(1, 2), (3, 3)])
def test_what_a_round_decides_by_is_its_choices_up_to_the_first_rejected_draft(stage, round_, deciding):
    """Where the run chose otherwise there, that is judged in the golden's own text, not here."""
    own = CUT[round_]
    assert generation._parting(TRUE, own) == round_
    true = [1, 2, 3, 4]
    for at in range(4):
        other = [9 if place == at else one for place, one in enumerate(true)]
        assert resampled(own, {(stage, round_): true}, {(stage, round_): other}) is (at >= deciding)
    assert resampled(own, {(stage, round_): true}, {(stage, round_): true})
    assert resampled(own, {}, {(stage, round_): true}) and resampled(own, {(stage, round_): true}, {})
    assert resampled(own, {(TARGET, round_): [1]}, {(TARGET, round_): [9]})


def test_what_a_prefill_decides_by_is_its_last_row():
    own = told((), (), finish="eos")
    assert generation._parting(TRUE, own) == 0
    for at in range(3):
        other = [9 if place == at else one for place, one in enumerate([1, 2, 3])]
        assert resampled(own, {(TARGET, 0): [1, 2, 3]}, {(TARGET, 0): other}) is (at < 2)
    assert resampled(own, {(VERIFY, 0): [1]}, {(VERIFY, 0): [9]})
    assert resampled(own, {(DRAFTS, 0): [1]}, {(DRAFTS, 0): [9]})


@pytest.fixture
def undrawn(monkeypatch):
    """What is told, and what was asked, of a run that can (or cannot) emit what it does."""

    def ask(own: Generation, can: bool | None = False, **more):
        asked = []
        monkeypatch.setattr(judging, "can_emit", lambda golden, run, step: asked.append(step) or can)
        run = dump(**{"precision": "bfloat16", **more})
        return [(one.stage, one.round, one.message) for one in _undrawn(dump(), run, pair(own))], asked

    return ask


NUMBERS = "which the numbers of round {} do not call for: its own logits part the two by more than noise"


@pytest.mark.parametrize(
    ("own", "round_", "row", "token", "accepted", "before", "said"),
    [
        (told((4, 6), (1,)), 0, 0, 4, False, (), "emits 4 as its token 1"),
        (told((5, 9, 7), (2,), (1,)), 1, 0, 9, True, (), "accepts 9 as its token 2"),
        (told((5, 6, 9), (2,), (1,)), 1, 1, 9, False, (6,), "emits 9 as its token 3"),
        (told((5, 6, 7, 8, 9, 1), (2, 1, 2), (1, 0, 2)), 3, 1, 1, True, (9,), "accepts 1 as its token 6"),
        (told((5, 6, 7, 8, 9, 10, 1), (2, 1, 3), (1, 0, 2)), 3, 2, 1, False, (9, 10), "emits 1 as its token 7"),
    ],
)
def test_the_first_other_token_is_asked_of_the_numbers_of_its_round(
    undrawn, own, round_, row, token, accepted, before, said
):
    found, (step,) = undrawn(own)
    assert step == judging.Emitted(4, round_, row, token, accepted, before)
    assert found == [("accept.emitted", round_, f"prompt p: the free run {said}, {NUMBERS.format(round_)}")]
    assert undrawn(own, can=True)[0] == undrawn(own, can=None)[0] == []
    assert undrawn(own, sides=2) == undrawn(own, precision="float32") == ([], [])


def test_nothing_is_asked_of_tokens_that_are_alike_or_behind_a_round_that_ended_otherwise(undrawn):
    assert undrawn(TRUE) == undrawn(told((5, 6, 7), (2,))) == ([], [])
    assert undrawn(told((5, 6, 9), (1, 1), (1, 0))) == ([], [])  # the third is of a round of its own
    assert undrawn(told((5, 6, 7, 9), (3,), (1,))) == ([], [])


def scored(scores, prompt=4, round_=1, device=None) -> StageRows:
    golden = np.asarray(scores, np.float32)
    labels = (np.broadcast_to(one, len(golden)).copy() for one in (prompt, round_, np.arange(len(golden))))
    seen = golden if device is None else np.asarray(device, np.float32)
    return StageRows(NAMES["verify.logits"], golden, seen, None, *labels)


@pytest.fixture
def unchosen(monkeypatch):
    """What is told of a free run that chose these tokens itself, where its rows have these scores and this noise."""

    def ask(own: Generation, chosen, rows: StageRows | None, noise: float = 0.1, true=None, **more):
        monkeypatch.setattr(generation, "row_noise", lambda rows: np.full(len(rows.golden), noise))
        monkeypatch.setattr(
            generation,
            "stage_rows",
            lambda golden, run, named, **how: true if how else rows,  # the golden's own
        )
        run = dump(contents=lambda *place: None if chosen is None else np.array(chosen), **more)
        return [(one.stage, one.prompt, one.round, one.message) for one in _unchosen(dump(), run, pair(own))]

    return ask


BEST = [[0, 0, 0, 9.0, 0], [0, 0, 0, 8.0, 7.3]]
"""Two rows; in the second the token 4 is 0.7 below the best."""
SECOND = told((5, 6, 4), (2,))
"""Parts from the golden in row 1 of round 1, by the token 4."""
TOLD = "prompt p: the free run emits 4 as its token 3, its own verify.tokens there are {}, "
PARTED = "and its scores part the two by more than noise"


def test_a_token_is_told_that_its_own_scores_put_too_far_below_the_best(unchosen):
    found = unchosen(SECOND, [3, 3], scored(BEST), noise=0.0999)
    assert found == [("accept.emitted", 4, 1, TOLD.format(3) + PARTED)]
    assert unchosen(SECOND, [3, 3], scored(BEST), noise=0.1001) == [] and NOISE_SIGMAS == 7
    assert unchosen(SECOND, [3, 4], scored(BEST), noise=0) == []  # its own choice
    assert unchosen(SECOND, [3, 3], scored(BEST), noise=0, sides=2) == unchosen(TRUE, [3, 3], scored(BEST)) == []
    assert unchosen(SECOND, [[3, 3]], scored(BEST), noise=0) == unchosen(SECOND, [3, 3], None, noise=0) == []


@pytest.mark.parametrize(("token", "is_told"), [(0, True), (3, False), (4, False), (5, True)])
def test_a_token_that_has_no_score_is_told_whatever_the_noise(unchosen, token, is_told):
    found = unchosen(told((5, 6, token), (2,)), [0, 1], scored(BEST), noise=0.2)
    assert bool(found) is is_told


def test_the_scores_are_those_of_the_row_counted_from_the_end_of_its_round(unchosen):
    others = [[9.0, 0, 0, 0, 0]] * 2
    rows = scored([*others, *BEST, *others], prompt=(3, 4, 4, 4, 4, 4), round_=(1, 0, 1, 1, 2, 2))
    assert unchosen(SECOND, [3, 3], rows, noise=0.0999) and not unchosen(SECOND, [3, 3], rows, noise=0.1001)
    some = scored(BEST[1:])  # the last row alone is kept
    assert unchosen(SECOND, [3, 3], some, noise=0.0999) and not unchosen(SECOND, [3, 3], some, noise=0.1001)
    first = told((5, 4), (2,))
    assert unchosen(first, [3, 3], scored(BEST)) and not unchosen(first, [3, 3], some)
    last = told((5, 6, 7, 8, 9, 10, 4), (2, 1, 3))  # row 2 of round 3
    for chosen in ([3], [3, 3]):  # of which nothing was chosen
        assert not unchosen(last, chosen, scored(BEST, round_=3), noise=0)
    assert unchosen(last, [3, 3, 3], scored(BEST, round_=3), noise=0)


def test_where_a_run_shows_no_choice_or_no_scores_the_best_or_the_reference_speaks(unchosen):
    said = "prompt p: the free run emits 4 as its token 3, the best of verify.tokens there are 3, "
    assert unchosen(SECOND, None, scored(BEST), noise=0)[0][3] == said + PARTED
    theirs = "and the reference's scores part the two by more than noise"
    silent = scored(BEST, device=np.zeros((2, 5)))
    found = unchosen(SECOND, [3, 3], None, noise=0, true=silent, precision="bfloat16")
    assert found[0][3] == TOLD.format(3) + theirs
    assert unchosen(SECOND, [3, 3], None, noise=0, true=silent) == []  # float32 differs nowhere
    assert unchosen(SECOND, [3, 3], scored(BEST), noise=0, true=silent, precision="bfloat16")[0][3].endswith(PARTED)


@pytest.fixture
def parted(monkeypatch):
    """Whether a draft in row 1 of round 2, prompt 4 is parted from a token; its scores are 0, 5, 6 and 8."""
    scores = np.full((6, 4), 1.0)
    scores[3] = 0, 5, 6, 8
    rows = scored(scores, prompt=(3, 4, 4, 4, 4, 5), round_=(2, 1, 2, 2, 3, 2))

    def ask(draft: int, token: int, noise: float, columns=(10, 11, 12, 13), shown: bool = True) -> bool:
        golden = SimpleNamespace(declared=NAMES if shown else {})
        monkeypatch.setattr(generation, "stage_rows", lambda golden, run, named, **how: rows)
        monkeypatch.setattr(generation, "row_noise", lambda rows: np.array([99, 99, 99, noise, 99, 99]))
        vocabulary = SimpleNamespace(columns=lambda ids: np.array([{10 + n: n for n in range(4)}.get(ids[0], -1)]))
        monkeypatch.setattr(generation, "draft_vocabulary", lambda *of: vocabulary)
        return _parted(golden, 4, 2, 1, draft, token)

    return ask


@pytest.mark.parametrize(
    ("draft", "token", "gap"), [(13, 13, 2.0), (13, 12, 2.0), (13, 11, 3.0), (13, 10, 8.0), (12, 13, 0.0)]
)
def test_a_draft_is_parted_from_a_token_or_from_the_second_best(parted, draft, token, gap):
    if gap:
        assert parted(draft, token, gap / NOISE_SIGMAS - 1e-6) and not parted(draft, token, gap / NOISE_SIGMAS + 1e-6)
    else:
        assert not parted(draft, token, 0.0)  # the best itself
    assert parted(draft, token, 99.0, shown=False)  # looked up, not scored


def test_a_token_of_which_there_is_no_draft_is_parted_from_every_draft(parted, monkeypatch):
    assert parted(13, 99, 1e9)
    monkeypatch.setattr(generation, "stage_rows", lambda *of, **how: None)
    assert not _parted(SimpleNamespace(declared=NAMES), 4, 2, 1, 13, 12)


def test_a_dump_of_fewer_prompts_is_not_cut_to_them():
    golden, run = dump(TRUE, TRUE, sampling=""), dump(TRUE, precision="bfloat16")
    with pytest.raises(ValueError, match="zip"):
        [*unseen_text(golden, run)]
