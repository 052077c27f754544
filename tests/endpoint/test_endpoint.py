"""`parity endpoint` against servers that answer from a golden, clean and spoilt: text, numbers, counters."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from parity.api import judge_endpoint, open_golden
from parity.endpoint.acceptance import Tally, acceptance, add_up
from parity.endpoint.answers import Completion
from parity.endpoint.counters import KNOWN, DraftCounters
from parity.endpoint.greedy import continuations
from parity.endpoint.server import Continuation, Server
from parity.endpoint.truth import experts, truths
from parity.golden.case import Generation
from tests.endpoint.pretend import Pretended
from tests.endpoint.serving import serving


@pytest.fixture(scope="module")
def golden(small_golden):
    return open_golden(small_golden.folder)


def judged(golden, spoil=None, **more):
    made = {"spoil": spoil} if spoil else {}
    with serving(Pretended(golden, **made, **more)) as url:
        report = judge_endpoint(golden, url)
    return {check.name: check for result in report.results for check in result.checks}


def scored(change):
    """Spoils each prompt's log-probabilities: `change(values, ids)`; None stands for null."""

    def spoil(answer, asked):
        choice = answer["choices"][0]
        if "prompt_logprobs" in choice:
            ids = asked["prompt"][1:]
            values = [one[str(token)]["logprob"] for one, token in zip(choice["prompt_logprobs"][1:], ids, strict=True)]
            new = change(np.array(values))
            follow = [None if v is None else {str(t): {"logprob": v}} for v, t in zip(new, ids, strict=True)]
            choice["prompt_logprobs"] = [None, *follow]
        return answer

    return spoil


def texts(change):
    """Spoils the tokens of free continuations: `change(tokens)`."""

    def spoil(answer, asked):
        choice = answer["choices"][0]
        if asked["max_tokens"] > 1:
            choice["token_ids"] = change(choice["token_ids"])
            answer["usage"]["completion_tokens"] = len(choice["token_ids"])
        return answer

    return spoil


def test_a_clean_server_passes_but_for_too_few_rounds(golden):
    checks = judged(golden)
    assert checks["prompt log-probabilities"].verdict == "pass"
    assert checks["prompt log-probabilities"].figures["typical"] == pytest.approx(1)
    assert checks["greedy continuations"].verdict == checks["counters add up"].verdict == "pass"
    assert checks["acceptance length"].verdict == "inconclusive" and "too few" in checks["acceptance length"].evidence
    assert checks["nothing is made up"].verdict == checks["routed experts"].verdict == "not judged"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda values: [None] * len(values), "are null: the server scores no prompt"),
        (lambda values: [0.0] * len(values), "a probability of one for every token is no evidence"),
        (lambda values: [None, *values[1:]], "2 of "),
        (lambda values: [-1.25] * len(values), "only 1 different values"),
    ],
)
def test_numbers_that_are_no_evidence_are_refused(golden, change, said):
    check = judged(golden, scored(change))["prompt log-probabilities"]
    assert check.verdict == "inconclusive" and "refused as evidence" in check.evidence and said in check.evidence


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values - 0.5 * (np.arange(len(values)) == 40),  # one token alone
        lambda values: values * 1.2,  # a temperature below one
        lambda values: np.roll(values, 1),  # the position before
        lambda values: values + 2,  # no log-probabilities
    ],
)
def test_other_numbers_fail(golden, change):
    check = judged(golden, scored(change))["prompt log-probabilities"]
    assert check.verdict == "fail" and check.figures["rows"] > 100


def test_a_server_without_prompt_scores_is_inconclusive(golden):
    def spoil(answer, asked):
        answer["choices"][0].pop("prompt_logprobs", None)
        return answer

    assert judged(golden, spoil)["prompt log-probabilities"].verdict == "inconclusive"


def test_another_token_fails_where_it_is(golden):
    check = judged(golden, texts(lambda tokens: [*tokens[:5], tokens[5] + 1, *tokens[6:]]))["greedy continuations"]
    assert check.verdict == "fail" and check.place.position == len(golden.manifest.case.prompts[0].ids) + 5


@pytest.mark.parametrize("tokens", [[], [2**30] * 12, [0] * 12])
def test_a_text_that_ends_or_is_of_no_vocabulary_fails(golden, tokens):
    def spoil(answer, asked):
        if asked["max_tokens"] > 1:
            answer["choices"][0] |= {"token_ids": tokens, "finish_reason": "stop"}
            answer["usage"]["completion_tokens"] = len(tokens)
        return answer

    checks = judged(golden, spoil, metrics=lambda page: page.replace("generation_tokens", "other"))
    assert checks["greedy continuations"].verdict == "fail"


def test_a_tie_is_followed_and_counted(golden, monkeypatch):
    """Behind a token that rounding explains the server is asked on along the golden's text."""
    from parity.endpoint.truth import Truth

    monkeypatch.setattr(Truth, "judge", lambda *_: ("tie", 0.0))
    check = judged(golden, texts(lambda tokens: [tokens[0] + 1, *tokens[1:]]))["greedy continuations"]
    each = sum(len(one.generated.emitted) for one in golden.manifest.case.prompts)
    assert check.verdict == "pass" and check.figures["tokens"] == each
    # the last token alone is asked for with a budget of one, which this server leaves as it is
    assert check.figures["others"] == {"tie": each - 2}


def counters(**factors):
    """The page of counters with some of them multiplied."""

    def change(page):
        lines = []
        for line in page.splitlines():
            factor = next((by for name, by in factors.items() if f"{name}_total" in line), 1)
            head, _, value = line.rpartition(" ")
            lines.append(f"{head} {float(value) * factor}")
        return "\n".join(lines)

    return change


@pytest.mark.parametrize(
    ("metrics", "name", "verdict", "said"),
    [
        (counters(num_accepted_tokens=3), "counters add up", "inconclusive", "neither with nor without"),
        (counters(num_draft_tokens=2), "counters add up", "inconclusive", "8.00 tokens a round"),
        (counters(num_drafts=0), "acceptance length", "fail", "it does not speculate"),
        (lambda page: "<html>", "acceptance length", "inconclusive", "no counters that are known"),
        (lambda page: page.replace("0.0", "NaN"), "answers", "inconclusive", "which is no count"),
        (counters(generation_tokens=3), "answers", "inconclusive", "somebody else uses it"),
        (counters(generation_tokens=-1), "answers", "inconclusive", "which is no count"),
    ],
)
def test_counters_that_tell_nothing(golden, metrics, name, verdict, said):
    check = judged(golden, metrics=metrics)[name]
    assert check.verdict == verdict and said in check.evidence


@pytest.mark.parametrize(
    ("accepted", "names", "verdict", "convention"),
    [
        (660, KNOWN[0], "pass", "without bonus"),
        (660, None, "pass", "without bonus"),
        (1140, None, "pass", "with bonus"),
        (1140, KNOWN[0], "inconclusive", None),  # it counts without, so these are no rounds of its own
        (900, KNOWN[0], "inconclusive", None),
        (300, KNOWN[0], "inconclusive", None),
    ],
)
def test_the_convention_is_the_engines_or_what_adds_up(accepted, names, verdict, convention):
    """480 rounds of 20 prompts, 1,120 tokens: 640 drafts came out, up to 80 more were accepted behind the ends."""
    tally = Tally(np.full(20, 56.0), np.full(20, 24.0), accepted, 1920.0, np.zeros(0))
    check = add_up(tally, 4, names)
    assert (check.verdict, check.figures.get("convention")) == (verdict, convention)


GENERATED = Generation(
    emitted=(0,) * 57, acceptance_length=(3, 2, 2) * 8, accepted_drafts=(2, 1, 1) * 8, finish="length"
)


def prompts(generations, lengths):
    """As many answers, each with these verify rounds."""
    made = []
    for one, (tokens, rounds) in zip(generations, lengths, strict=True):
        truth = SimpleNamespace(case=SimpleNamespace(generated=one), k=4)
        counted = DraftCounters(rounds, float(tokens - rounds), 4.0 * rounds)
        made.append(SimpleNamespace(truth=truth, free=SimpleNamespace(tokens=(0,) * (tokens + 1)), counted=counted))
    return made


@pytest.mark.parametrize(("rounds", "verdict"), [(24, "pass"), (44, "fail"), (16, "fail")])
def test_acceptance_is_judged_by_its_interval_both_ways(rounds, verdict):
    """A drafter that is worse, and one that is better than the golden's: neither is the golden's."""
    checks = acceptance(prompts([GENERATED] * 20, [(56, rounds)] * 20), KNOWN[0], 0.05, 0)
    assert {check.name: check.verdict for check in checks}["acceptance length"] == verdict


def test_forced_acceptance_is_refused(golden, monkeypatch):
    options = {"speculative_config": {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 3.0}}
    assert judged(golden, vllm_config=options)["nothing is made up"].verdict == "fail"
    assert judged(golden, args={"synthetic_acceptance_length": None})["nothing is made up"].verdict == "pass"
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "3.5")
    assert "SGLANG_SIMULATE_ACC_LEN=3.5" in judged(golden)["nothing is made up"].evidence


def test_acceptance_of_counters_that_do_not_add_up_is_inconclusive():
    asked = prompts([GENERATED] * 20, [(56, 24)] * 20)
    for one in asked:
        one.counted = replace(one.counted, accepted=one.counted.accepted * 3)
    assert [check.verdict for check in acceptance(asked, KNOWN[0], 0.05, 0)] == ["inconclusive"] * 2 + ["not judged"]


def routed(golden, change):
    """The check of routed experts that are the golden's, changed by `change(experts)`, [rows, layers, X]."""
    known = {truth.number: truth for truth in truths(golden, "bfloat16")}
    stages = [name for name in golden.declared if name.endswith(".experts")]
    made = Pretended(golden)
    made.experts = lambda number: change(experts(golden, known[number], stages, len(known[number].sequence) - 1))
    with serving(made) as url:
        report = judge_endpoint(golden, url)
    return next(check for check in report.results[0].checks if check.name == "routed experts")


def test_routed_experts_are_the_goldens_in_any_order(golden):
    check = routed(golden, lambda ids: ids[:, :, ::-1])
    assert check.verdict == "pass" and set(check.figures["choices"]) <= {"same", "tie"}


def test_a_router_that_takes_others_fails_where_it_is(golden):
    def change(ids):
        ids[30:, 3] = (ids[30:, 3] + 1) % 4
        return ids

    check = routed(golden, change)
    assert check.verdict == "fail" and check.place.layer == 3 and check.place.position == 30


@pytest.mark.parametrize("change", [lambda ids: ids[:-3], lambda ids: ids[:, :-1]])
def test_experts_of_another_shape_are_inconclusive(golden, change):
    check = routed(golden, change)
    assert check.verdict == "inconclusive" and "expert ids for" in check.evidence


def test_a_text_that_goes_on_behind_its_end_fails():
    case = SimpleNamespace(id="x", ids=(1, 2), generated=SimpleNamespace(emitted=(3, 4), finish="eos"))
    made = Continuation(SimpleNamespace(case=case, number=0), Completion((3, 4, 9), "length"))
    Server._follow(None, made, 3)
    assert made.choices == [3, 4] and continuations([made]).verdict == "fail"
    short = Continuation(made.truth, Completion((3,), "stop"))  # an end token that the server keeps to itself
    Server._follow(None, short, 3)
    assert short.choices == [3, 4] and continuations([short]).verdict == "pass"


def test_side_by_side(golden):
    other = texts(lambda tokens: [*tokens[:3], tokens[3] + 1, *tokens[4:]])
    with serving(Pretended(golden)) as url, serving(Pretended(golden, other)) as spoilt:
        report = judge_endpoint(golden, url, spoilt)
    both = {check.name: check for check in report.results[2].checks}
    assert both["speculation on = off"].verdict == "fail"
    assert both["log-probabilities with and without speculation"].figures["same"] == 1
    assert [check.verdict for check in report.results[1].checks if check.name == "no speculation"] == ["fail"]


def test_the_command_ends_by_its_verdict(golden, parity, tmp_path):
    with serving(Pretended(golden)) as url:
        found = parity("endpoint", url, "--golden", golden.folder, "--json", tmp_path / "found.json")
    assert found.code == 3 and "endpoint verdict: inconclusive" in found.last
    assert "not seen: the drafter but for how much is accepted" in found.out
    assert json.loads((tmp_path / "found.json").read_text())["exit_code"] == 3
    plain = Pretended(golden, metrics=lambda page: "")
    with serving(plain) as url:
        found = parity("endpoint", url, "--golden", golden.folder, "--no-speculation")
    assert found.code == 0 and "endpoint verdict: pass" in found.last
    with serving(Pretended(golden, scored(lambda values: values * 1.2))) as url:
        assert parity("endpoint", url, "--golden", golden.folder).code == 1
