"""What a run emits alone is compared with its own recorded choices, by prompt; and what a dispute reaches of it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import compare, generation
from parity.compare.generation import check_generation
from parity.errors import UsageError
from parity.golden.producer import Corroboration
from parity.golden.store import Dump
from parity.policy import read_policy
from parity.seam import Shown
from parity.shown import View
from tests.meta.dumps import clean, write
from tests.meta.worlds import Size

TWO = Size(prompts=(40, 30))
NUMBER = 1


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    return write(clean(TWO), tmp_path_factory.mktemp("pair"))


def emitting(run: Dump, changes, precision: str = "bfloat16", **model) -> Dump:
    """The run with other generations: `changes(generation)` by prompt number, None to leave one out."""
    manifest = run.manifest
    prompts = [
        one.model_copy(update={"generation": changes[number](one.generation)}) if number in changes else one
        for number, one in enumerate(manifest.case.prompts)
    ]
    case = manifest.case.model_copy(update={"prompts": tuple(prompts), "precision": precision})
    seen = Dump(run.folder, manifest)
    seen.manifest = manifest.model_copy(update={"case": case, **model})
    return seen


def tokens(**changes):
    """Tokens by their place in what is emitted, all else kept."""
    places = {int(name[1:]): token for name, token in changes.items()}
    return lambda told: told.model_copy(
        update={"emitted": tuple(places.get(n, one) for n, one in enumerate(told.emitted))}
    )


def disputed(golden: Dump, stage: str) -> Dump:
    said = Corroboration(
        witness="other", versions={}, source_digest="", prompts=2, policy="float32", stages=(), disputed=(stage,)
    )
    seen = Dump(golden.folder, golden.manifest)
    seen.manifest = golden.manifest.model_copy(update={"corroborations": (said,)})
    return seen


def test_what_is_emitted_is_chosen_by_the_runs_own_scores(dumps):
    golden, run = dumps
    assert not check_generation(golden, run).findings
    for place in (0, 1, 4):
        (found,) = check_generation(golden, emitting(run, {NUMBER: tokens(**{f"t{place}": 3})})).findings
        assert (found.kind, found.prompt, found.round) == ("generation", NUMBER, {0: 0, 1: 1, 4: 2}[place])
        assert f"emits 3 as its token {place + 1}, its own" in found.message
    every = emitting(
        run, dict.fromkeys((0, 1), lambda told: told.model_copy(update={"emitted": (3,) * len(told.emitted)}))
    )
    assert compare(golden, every, read_policy(None, "bfloat16")).exit_code == 1


@pytest.mark.parametrize("shown", ["tokens alone", "nothing"])
def test_of_a_run_that_shows_no_scores_the_references_speak(shown, dumps, monkeypatch):
    """A device with a view of tokens alone may otherwise answer another prompt in its free run."""
    golden, run = dumps
    rows = generation.stage_rows
    monkeypatch.setattr(
        generation,
        "stage_rows",
        lambda one, other, named, **more: (
            None if other is not golden and named.name.endswith("logits") else rows(one, other, named, **more)
        ),
    )
    free = emitting(run, {NUMBER: tokens(t1=3)})
    if shown == "nothing":
        free.contents = lambda *place: None
    else:
        assert not check_generation(golden, emitting(run, {})).findings
    (found,) = check_generation(golden, free).findings
    assert (found.prompt, found.round) == (NUMBER, 1) and "the reference's scores part" in found.message
    assert any("the text of 1 of 2 free runs" in line for line in generation.unseen_text(golden, free))
    (told,) = generation.unseen_text(golden, free)
    assert told.endswith(": a float32 run and `parity gate --only lossless` compare whole texts")
    free.__dict__["view"] = View((Shown("verify.tokens"),), free.declared)
    (told,) = generation.unseen_text(golden, free)
    assert told.endswith(": a float32 run compares whole texts"), "the gate reads verify.logits"
    monkeypatch.setattr(generation, "row_noise", lambda rows: np.full(len(rows.prompt), np.inf))
    assert not check_generation(golden, free).findings


def test_an_end_behind_which_the_reference_goes_on_is_found(dumps):
    golden, run = dumps

    def ended(told):
        cut = {
            "acceptance_length": told.acceptance_length[:1],
            "accepted_drafts": told.accepted_drafts[:1],
            "finish": "eos",
        }
        return told.model_copy(update={"emitted": told.emitted[:3], **cut})

    (found,) = check_generation(golden, emitting(run, {NUMBER: ended})).findings
    assert "ends after 3 tokens" in found.message


@pytest.mark.parametrize(
    ("round_", "rounds"), [(0, [1]), (1, [2]), (2, [])], ids=["first", "middle", "last, which may be cut"]
)
def test_a_round_emits_its_accepted_drafts_and_one_token_more(round_, rounds, dumps):
    golden, run = dumps

    def fewer(told):
        counts = [count - (place == round_) for place, count in enumerate(told.accepted_drafts)]
        return told.model_copy(update={"accepted_drafts": tuple(counts)})

    found = check_generation(golden, emitting(run, {NUMBER: fewer})).findings
    assert [(one.stage, one.round) for one in found] == [("accept.length", round_) for round_ in rounds]


def test_a_prompt_that_emits_nothing_takes_no_other_ones_place(dumps):
    golden, run = dumps
    seen = emitting(run, {0: lambda told: None})
    report = compare(golden, seen, read_policy(None, "bfloat16"))
    assert report.acceptance.same_prompts == 1
    assert [(one.kind, one.prompt) for one in report.findings] == [("generation", 0)] and report.exit_code == 1


@pytest.mark.parametrize("stage, reached", [("drafter.fc_out", False), ("target.logits", True)])
def test_a_dispute_sets_tokens_aside_only_where_it_reaches_them(stage, reached, dumps):
    golden, run = dumps
    found = check_generation(disputed(golden, stage), emitting(run, {0: tokens(t6=3)}, precision="float32"))
    aside = [one.message for one in found.set_aside]
    assert ["other tokens or counts" in one for one in aside] == [True] * reached
    assert bool(found.findings) is not reached


@pytest.mark.parametrize("stage, verdict", [("drafter.fc_out", "fail"), ("target.layers.0.q", "disputed")])
def test_a_dispute_sets_constants_aside_only_of_its_own_side_and_names_them(stage, verdict, dumps):
    golden, run = dumps
    golden = disputed(golden, stage)
    target = golden.manifest.model.target
    for dump, theta in ((golden, 10.0), (run := emitting(run, {}), 11.0)):
        side = target.model_copy(update={"constants": {"rope_theta": theta}})
        dump.manifest = dump.manifest.model_copy(
            update={"model": dump.manifest.model.model_copy(update={"target": side})}
        )
    report = compare(golden, run, read_policy(None, "bfloat16"))
    assert report.verdict == verdict and report.exit_code == (1 if verdict == "fail" else 3)
    said = [*report.unseen, *(one.message for one in report.findings)]
    assert any("rope_theta is 11.0" in one for one in said)


def test_a_run_of_which_some_prompts_generated_is_unreadable(tmp_path):
    pair = clean(TWO)

    def after(folder):
        from tests.golden.edits import rewrite

        rewrite(folder / "run", lambda raw: raw["case"]["prompts"][1].update(generation=None))

    pair.after = after
    with pytest.raises(UsageError, match=r"prompt 1 .* generated nothing freely, others did"):
        write(pair, tmp_path)


def counting(*lengths: int):
    """The same tokens in rounds of these lengths."""
    return lambda told: told.model_copy(
        update={"acceptance_length": lengths, "accepted_drafts": tuple(length - 1 for length in lengths)}
    )


@pytest.mark.parametrize(
    ("lengths", "said"), [((1, 1, 3, 1), "accepts 0 drafts"), ((3, 2, 1), "accepts 2 drafts")], ids=["fewer", "more"]
)
def test_a_free_run_accepts_the_drafts_that_the_forced_one_makes_of_the_same_text(dumps, lengths, said, monkeypatch):
    """In bfloat16 as well: where the reference's scores part the draft from every other token."""
    golden, run = dumps
    assert run.manifest.case.prompts[NUMBER].generation.acceptance_length == (2, 3, 1)
    free = emitting(run, {NUMBER: counting(*lengths)})
    (found,) = check_generation(golden, free).findings
    assert (found.stage, found.round) == ("accept.length", 1) and said in found.message
    monkeypatch.setattr(generation, "row_noise", lambda rows: np.full(len(rows.prompt), np.inf))
    assert not check_generation(golden, free).findings


def test_counts_of_drafts_that_nobody_scores_are_exact_and_those_that_nobody_shows_are_not_asked(dumps, monkeypatch):
    golden, run = dumps
    free = emitting(run, {NUMBER: counting(1, 1, 3, 1)})
    monkeypatch.setattr(generation, "row_noise", lambda rows: np.full(len(rows.prompt), np.inf))
    with monkeypatch.context() as looked_up:
        declared = {name: stage for name, stage in golden.declared.items() if name != generation.DRAFT_LOGITS}
        looked_up.setattr(golden, "declared", declared)
        assert len(check_generation(golden, free).findings) == 1
    contents = free.contents
    free.contents = lambda *place: None if place[-1] == generation.DRAFT_TOKENS else contents(*place)
    assert not check_generation(golden, free).findings


@pytest.mark.parametrize(
    ("precision", "sampling", "parted", "shows", "due"),
    [
        ("float32", "", True, True, []),
        ("bfloat16", "", False, True, []),
        ("bfloat16", "", True, True,
         ["the text of 1 of 2 free runs behind its first token that is not the reference's: a float32 run and `parity "
          "gate --only lossless` compare whole texts"]),
        ("bfloat16", "", True, False,
         ["the text of 1 of 2 free runs behind its first token that is not the reference's: a float32 run compares "
          "whole texts"]),
        ("bfloat16", "temperature=1", False, True,
         ["the text that a free run samples in bfloat16: `parity gate --only sampling` takes its decisions again"]),
    ],
)  # fmt: skip
def test_what_is_not_judged_of_a_free_runs_text_is_said(precision, sampling, parted, shows, due):
    """Of three prompts one generated nothing."""

    def side(*emitted, **more) -> SimpleNamespace:
        told = [None if one is None else SimpleNamespace(emitted=one) for one in emitted]
        case = SimpleNamespace(prompts=[SimpleNamespace(generation=one) for one in told], precision=precision, **more)
        view = SimpleNamespace(shows=lambda stage: shows and stage == "verify.logits")
        return SimpleNamespace(manifest=SimpleNamespace(case=case), view=view)

    golden = side((1, 2), (3, 4), (5, 6), sampling=sampling)
    assert [*generation.unseen_text(golden, side((1, 2), (3, 9 if parted else 4), None))] == due
    assert [*generation.unseen_text(golden, side(None, None, None))] == []


def longer(*tokens, finish="length"):
    """What is emitted and more, in a round of its own."""

    def changed(told):
        counts = {"acceptance_length": (*told.acceptance_length, len(tokens)), "finish": finish}
        drafts = (*told.accepted_drafts, len(tokens) - 1)
        return told.model_copy(update={"emitted": (*told.emitted, *tokens), "accepted_drafts": drafts, **counts})

    return changed


@pytest.mark.parametrize(
    ("budget", "finish", "said"),
    [(0, "length", "emits 10 tokens of a budget of"), (9, "length", "continues behind the reference's"),
     (9, "eos", "which ends a text")],
)  # fmt: skip
def test_no_rounding_excuses_what_comes_behind_the_end(budget, finish, said, dumps):
    """In bfloat16 a text may part from the reference's; its budget and its end are the case's own."""
    golden, run = dumps
    case = golden.manifest.case
    ended = [
        one.model_copy(update={"generation": one.generation.model_copy(update={"finish": finish})})
        for one in case.prompts
    ]
    whole = Dump(golden.folder, golden.manifest)
    case = case.model_copy(update={"max_new_tokens": case.max_new_tokens + budget, "prompts": tuple(ended)})
    whole.manifest = golden.manifest.model_copy(update={"case": case})
    (found,) = check_generation(whole, emitting(run, {NUMBER: longer(3, 3, 3)})).findings
    assert (found.stage, found.prompt) == ("accept.emitted", NUMBER) and said in found.message
