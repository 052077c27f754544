"""Goldens that sample: a device is given their settings and numbers, and each of its decisions is taken again."""

from __future__ import annotations

from copy import copy
from pathlib import Path

import numpy as np
import pytest

from parity.api import compare_dumps, open_golden, run_device
from parity.compare.generation import check_generation
from parity.device.faults.sampling import fault as planted
from parity.errors import Inconclusive, UsageError
from parity.gates.decisions_rows import read_draft_vocabulary
from parity.golden.reading import checked_manifest
from parity.golden.store import Dump
from parity.golden.trust import trusted
from parity.sampling import as_text, from_text, read_sampling, written
from parity.seam import Sampling
from tests.sample import by_night, first, sample

FACTORY = "tests.compare.own_sampling"
TOKENS = ("target.tokens", "drafter.draft_tokens", "verify.tokens")
SEEN_BY_THE_GATE_ALONE = ("sample-q-bfloat16",)
"""A thousandth of an acceptance: a golden's numbers are random, the gate's second run moves them beside an edge."""


@pytest.fixture(scope="module")
def golden(sampled_golden):
    return trusted(sampled_golden, sampled=True)


@pytest.fixture(scope="module")
def report(golden, tmp_path_factory):
    """What a comparison says of a device, by its tokens; each once."""
    made = {}

    def judged(device="numpy", mode="chained", precision="bfloat16"):
        key = device, mode, precision
        if key not in made:
            out, free = tmp_path_factory.mktemp("run") / "run", device == "numpy"
            made[key] = compare_dumps(golden, run_device(golden, device, mode, precision, out=out, free=free))
        return made[key]

    return judged


def _choices(report):
    return {stage.stage: stage.choices for stage in report.stages if stage.stage in TOKENS}


@pytest.mark.parametrize(
    ("mode", "precision"), first([("chained", "bfloat16"), ("local", "bfloat16"), ("chained", "float32")])
)
def test_a_clean_device_draws_what_the_numbers_call_for(mode, precision, report):
    found = report("numpy", mode, precision)
    assert found.verdict == "pass", [(stage.stage, stage.note) for stage in found.stages if stage.verdict != "pass"]
    counts = _choices(found)
    assert all(not count["bug"] for count in counts.values()) and len(counts) == len(TOKENS)
    if precision == "float32":
        assert all(not count["noise"] for count in counts.values())
        assert found.acceptance.same_prompts == 2
    told = any("the text that a free run samples" in said for said in found.unseen)
    assert told == ((mode, precision) == ("chained", "bfloat16"))


def test_lanes_are_given_each_their_own_numbers(report):
    assert _choices(report("numpy,lanes=2")) == _choices(report())


@pytest.mark.parametrize("fault", sample(one.id for one in planted.faults if one.id not in SEEN_BY_THE_GATE_ALONE))
def test_a_planted_fault_of_sampling_is_killed_and_named(fault, report):
    found = report(f"{FACTORY}:load,fault={fault}")
    assert found.verdict == "fail" and found.first.stage in TOKENS
    wrong = next(stage for stage in found.stages if stage.stage == found.first.stage)
    assert wrong.choices["bug"] and wrong.note.startswith("prompt ") and " by 0." in wrong.note


def test_the_command_line_kills_one_and_says_which_number_decides(parity, golden):
    device = f"{FACTORY}:load,fault=sample-ratio-inverted"
    found = parity("diff", "--golden", golden.folder, "--device", device, "--stage", "*tokens")
    assert found.code == 1 and "is accepted, p / q is 0." in found.out and "verify.tokens" in found.last
    assert "parity diagnose" not in found.out, "which refuses a golden that samples"


@pytest.mark.parametrize(
    ("option", "said"), [("samples=false", "does not sample by given"), ("own=true", "numbers of its own")]
)
def test_a_device_that_cannot_be_given_numbers_is_refused(option, said, parity, golden):
    found = parity("run", "--golden", golden.folder, "--device", f"{FACTORY}:saying,{option}")
    assert found.code == 2 and said in found.err and found.err.count("\n") == 1


def test_temperature_zero_is_the_greedy_golden_bit_for_bit(shallow_golden, remake_small_golden, tmp_path):
    model = shallow_golden.manifest.model
    pair = dict(target=Path(model.target.path), drafter=Path(model.drafter.path))
    true = shallow_golden.manifest
    asked = dict(sample="temperature=0,top_k=3", seed=4, max_new_tokens=true.case.max_new_tokens)
    made = remake_small_golden(tmp_path / "zero", **asked, **pair).manifest
    assert [row.sha256 for row in made.tensors] == [row.sha256 for row in true.tensors] and made.case.seed == 4
    assert [one.generation for one in made.case.prompts] == [one.generation for one in true.case.prompts]
    zero = open_golden(tmp_path / "zero", sampled=True)
    assert compare_dumps(zero, run_device(zero, out=tmp_path / "run", free=False)).verdict == "pass"


def test_what_was_drawn_from_hidden_logits_is_inconclusive(golden, tmp_path):
    """Another token than the golden's may be right or wrong: without the logits nobody can tell."""
    run = run_device(golden, out=tmp_path / "run")
    run.manifest = run.manifest.model_copy(
        update={"stages": tuple(n for n in run.manifest.stages if "logits" not in n)}
    )
    run.rows = {place: row for place, row in run.rows.items() if "logits" not in place[3]}
    notes = {stage.stage: (stage.verdict, stage.note) for stage in compare_dumps(golden, run, ["*tokens"]).stages}
    assert ("inconclusive", True) in {(verdict, "that are not shown" in note) for verdict, note in notes.values()}


def test_a_free_run_parts_only_where_the_forced_one_chose_otherwise(golden, tmp_path):
    run = run_device(golden, precision="float32", out=tmp_path / "run")
    assert not check_generation(golden, run).findings
    first, *rest = run.manifest.case.prompts
    own = first.generation.model_copy(update={"emitted": (*first.generation.emitted[:-1], 7)})
    case = run.manifest.case.model_copy(update={"prompts": (first.model_copy(update={"generation": own}), *rest)})
    run.manifest = run.manifest.model_copy(update={"case": case})
    assert [one.prompt for one in check_generation(golden, run).findings] == [0]


def test_in_bfloat16_what_the_numbers_cannot_call_for_fails_and_what_rounding_may_choose_does_not(golden, tmp_path):
    """A device that samples where it is watched and is greedy in service."""
    served = run_device(golden, f"{FACTORY}:greedy_in_service", out=tmp_path / "greedy")
    found = check_generation(golden, served).findings
    assert found and all("do not call for" in one.message for one in found)
    assert not check_generation(golden, run_device(golden, out=tmp_path / "clean")).findings


def test_a_greedy_run_is_none_over_a_golden_that_samples(golden, shallow_golden, tmp_path):
    greedy = run_device(trusted(shallow_golden), out=tmp_path / "run")
    with pytest.raises(UsageError, match="sampled in another way, or by other random numbers"):
        compare_dumps(golden, greedy)


@pytest.mark.parametrize("command", ["gate", "diagnose", "calibrate"])
def test_what_judges_greedy_decoding_refuses_a_golden_that_samples(command, parity, golden):
    found = parity(command, "--golden", golden.folder)
    assert found.code == 2 and "samples: `parity run`, `parity diff`" in found.err


@by_night  # nightly/test_judge asks the gate on such a golden in every run
def test_the_gate_of_sampling_judges_on_a_golden_that_samples(parity, golden, monkeypatch):
    monkeypatch.setattr("parity.gates.sampling.gate.ROUNDS", 1)
    monkeypatch.setattr("parity.gates.sampling.gate.PROMPTS", 1)
    found = parity("gate", "--only", "sampling", "--golden", golden.folder, "--no-isolate")
    assert found.code == 0 and "replay, in lanes" in found.out, found.out + found.err


def test_drafts_that_are_drawn_tell_no_column_of_the_vocabulary(golden):
    assert read_draft_vocabulary(golden).whole
    nameless = copy(golden)
    model = golden.manifest.model.model_copy(update={"draft_vocabulary": (7,) * golden_width(golden)})
    nameless.manifest = golden.manifest.model_copy(update={"model": model})
    with pytest.raises(Inconclusive, match="samples its drafts"):
        read_draft_vocabulary(nameless)


def golden_width(golden):
    return golden.contents("float32", 0, 1, "drafter.logits").shape[1]


def test_a_golden_that_samples_can_be_verified_and_is_never_a_default(parity, sampled_golden):
    assert parity("verify-golden", sampled_golden.folder).code == 0
    (parity.home / "goldens").mkdir()
    (parity.home / "goldens" / "one").symlink_to(sampled_golden.folder)
    assert "one, which samples" in parity("diff").err


@pytest.mark.parametrize(
    ("update", "uniforms", "said"),
    [
        ({"sampling": ""}, None, "says nothing of sampling"),
        ({"sampling": "temperature=1.5"}, None, "which is written temperature=1.5,top_k=0"),
        ({"sampling": "temperature=hot"}, None, "temperature is 0 or a normal number of float32, not 'hot'"),
        ({}, "", "has no table of random numbers"),
        ({}, as_text(np.ones((12, 4, 5))), r"in \[0, 1\) are due"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(update, uniforms, said, sampled_golden, tmp_path):
    case = sampled_golden.manifest.case
    told = {} if uniforms is None else {"uniforms": uniforms}
    prompts = tuple(one.model_copy(update=told) for one in case.prompts)
    wrong = sampled_golden.manifest.model_copy(update={"case": case.model_copy(update={"prompts": prompts, **update})})
    with pytest.raises(UsageError, match=said):
        checked_manifest(wrong.written(), tmp_path)


def test_settings_and_numbers_are_read_as_they_are_written():
    settings = Sampling(0.7, 6, 0.9, 0.05, "match")
    assert read_sampling(written(settings)) == settings
    assert read_sampling("top_k=3") == Sampling(top_k=3)
    numbers = np.random.default_rng(0).random((3, 4, 3), np.float32)
    np.testing.assert_array_equal(from_text(as_text(numbers), 3, 2), numbers)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is no setting with a value: temperature, top_k"),
        ("top_k", "'top_k' is no setting with a value"),
        ("heat=1", "'heat' is no setting"),
        ("top_k=3,top_k=4", "top_k is there twice"),
        ("top_k=1.5", "top_k is a whole number from 0 on, not '1.5'"),
        ("top_k=\u0663", "top_k is a whole number"),
        ("top_k=3,temperature=nan", "temperature is 0 or a normal number of float32, not nan"),
        ("temperature=1e-40", "temperature is 0 or a normal number"),
        ("top_p=0", "top_p is a number above 0, at most 1, not 0.0"),
        ("min_p=2", "min_p is a number of 0 to 1, not 2.0"),
        ("rule=best", "rule is residual or match, not 'best'"),
    ],
)
def test_settings_that_are_none_are_told_by_what_is_wrong(text, said):
    with pytest.raises(UsageError) as refused:
        read_sampling(text)
    assert said in str(refused.value)


def test_numbers_are_the_seeds_and_every_prompt_has_its_own(sampled_golden):
    case = sampled_golden.manifest.case
    assert len({prompt.uniforms for prompt in case.prompts}) == len(case.prompts)
    case = Dump(sampled_golden.folder).manifest.case
    assert case.sampled(1)[1].shape == (case.max_new_tokens, 4, 5)
