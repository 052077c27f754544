"""The clean numpy device over chat prompts, a sample of them or all: what the project claims of it."""

from __future__ import annotations

import pytest

from parity.api import compare_dumps, run_device
from parity.golden.views import GoldenSlice
from parity.stages import declared
from tests.sample import WHOLE, by_night

EVERY_STAGE_WITHIN = 1e-5


@pytest.fixture(scope="module")
def golden(request):
    """The first prompt of the golden that the family's faults are judged by; by night every chat prompt of the default
    one."""
    if WHOLE:
        return request.getfixturevalue("full_golden")
    whole = request.getfixturevalue("family_golden")("p-eagle")
    case = whole.manifest.case
    return GoldenSlice(whole, 0, len(case.prompts[0].generated.acceptance_length), case.max_new_tokens)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def precision(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def runs(golden, tmp_path_factory):
    """Runs of the numpy device by (mode, precision), made once."""
    made = {}

    def run(mode: str, precision: str):
        if (mode, precision) not in made:
            out = tmp_path_factory.mktemp("runs") / f"{mode}-{precision}"
            made[mode, precision] = run_device(golden, "numpy", mode, precision, out=out)
        return made[mode, precision]

    return run


@by_night
def test_every_prompt_emits_at_least_forty_tokens(golden):
    assert all(len(prompt.generation.emitted) >= 40 for prompt in golden.manifest.case.prompts)


@pytest.mark.parametrize("mode", ["local", "chained"])
def test_float32_agrees_to_1e_5_at_every_stage(mode, golden, runs):
    report = compare_dumps(golden, runs(mode, "float32"))
    assert report.verdict == "pass", report.first
    errors = {stage.stage: stage.x["l2"] for stage in report.stages if stage.x}
    assert {name: error for name, error in errors.items() if error > EVERY_STAGE_WITHIN} == {}


def test_float32_emits_the_references_tokens_drafts_and_accepted_counts(golden, runs):
    pairs = zip(golden.manifest.case.prompts, runs("chained", "float32").manifest.case.prompts, strict=True)
    assert all(true.generation == seen.generation for true, seen in pairs)


def test_bfloat16_local_is_within_one_and_a_half_times_the_noise_at_every_stage(golden, runs):
    report = compare_dumps(golden, runs("local", "bfloat16"))
    assert report.verdict == "pass", report.first
    assert {stage.stage: stage.x["l2"] for stage in report.stages if stage.x and stage.x["l2"] > 1.5} == {}


def test_bfloat16_chained_parts_only_at_ties_and_within_noise(golden, runs):
    report = compare_dumps(golden, runs("chained", "bfloat16"))
    assert report.verdict == "pass", report.first
    assert {stage.stage: stage.choices for stage in report.stages if stage.choices.get("bug")} == {}


def test_every_stage_of_the_table_is_in_golden_and_run(golden, runs, precision):
    model = golden.manifest.model
    every = set(declared(model.num_layers, model.num_drafter_layers))
    for mode in ("local", "chained"):
        run = runs(mode, precision)
        assert {row.place[2] for row in golden.manifest.tensors if row.variant == "float32"} == every
        assert {row.place[2] for row in run.manifest.tensors} == every


@by_night
def test_rounds_accept_none_some_and_all_drafts(golden):
    counts = {n for prompt in golden.manifest.case.prompts for n in prompt.generation.accepted_drafts}
    assert {0, golden.manifest.case.k} < counts
