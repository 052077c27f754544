"""Sampling in the lanes of a batch: each by its own numbers and settings, and a gate that sees where it is not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from parity import device
from parity.builders import builder
from parity.device.faults.sampling_lanes import fault as planted
from parity.errors import DeviceFailed
from parity.gates import run_gate
from parity.gates.context import GateContext
from parity.gates.decisions_rows import read_draft_vocabulary
from parity.gates.sampling import gate as sampling
from parity.gates.sampling import lanes as sampling_lanes
from parity.gates.sampling.rounds import Play, sampled, sampled_together, table
from parity.guard import guard, unguarded
from parity.isolation import ProcessLimits
from parity.seam import Sampling
from tests.sample import WHOLE, sample

pytestmark = pytest.mark.usefixtures("few_samples")
FULL = Sampling(temperature=0.7, top_k=6, top_p=0.9, min_p=0.05)
HOT = Sampling(temperature=2.0, rule="match")


@pytest.fixture
def in_lanes(shallow_golden, tmp_path, monkeypatch):
    """The gate over a device of this name, and its check of lanes; by day it is asked under one rule alone, too."""

    def run(name):
        monkeypatch.setattr(sampling, "RULES", sampling.RULES if WHOLE else sampling.RULES[1:])
        found = run_gate(
            GateContext(shallow_golden, name, builder(name, shallow_golden), "bfloat16", tmp_path), "sampling"
        )
        return found, next(one for one in found.checks if one.name == sampling_lanes.NAME)

    return run


def test_a_clean_device_of_lanes_passes(in_lanes):
    found, check = in_lanes("numpy,lanes=2")
    steered = [one for one in found.checks if one.name.startswith("steered")]  # its few rounds may leave no choice
    assert {one.verdict for one in found.checks if one not in steered} == {"pass"}
    assert {one.verdict for one in steered} <= {"pass", "not judged"} and len(found.checks) == (12 if WHOLE else 7)
    assert check.figures["near"] > 20 and not check.figures["wrong"]


@pytest.mark.parametrize("fault", sample(planted.faults, lambda fault: fault.id), ids=lambda fault: fault.id)
def test_what_a_lane_samples_by_of_another_is_found(fault, in_lanes, monkeypatch):
    """And by nothing else: a lane that sits alone has no neighbour."""
    if not WHOLE:
        monkeypatch.setattr(sampling, "_in_rounds", lambda *asked: iter(()))
    found, check = in_lanes(f"parity.device.faults:{fault.id.replace('-', '_')}")
    assert check.verdict == "fail" and check.place.stage, check
    assert [one.name for one in found.checks if one.verdict == "fail"] == [sampling_lanes.NAME]


def test_a_lane_that_keeps_the_settings_of_the_sequence_before_is_found(shallow_golden, tmp_path):
    """The first run is right; the second, in reverse order of the lanes, is not."""

    def load(**options):
        batch = device.load(
            shallow_golden.manifest.model.target.path, shallow_golden.manifest.model.drafter.path, **options
        )
        given, taken = batch.sample_batch, set()

        def sample_batch(lanes, settings, uniforms):
            for lane, own, numbers in zip(lanes, settings, uniforms, strict=True):
                if lane not in taken:
                    given([lane], [own], [numbers])
                taken.add(lane)

        batch.sample_batch = sample_batch
        return guard(batch, "keeps")

    context = GateContext(shallow_golden, "keeps", partial(load, lanes=2), "bfloat16", tmp_path)
    match = [replace(one, rule="match") for one in (Sampling(temperature=1.5), Sampling())]
    vocabulary = read_draft_vocabulary(shallow_golden)
    assert sampling_lanes.in_lanes(context, match, vocabulary, 10).verdict == "fail"


def test_lanes_that_do_not_sample_are_not_judged_and_those_without_the_verb_fail_to_answer(shallow_golden, tmp_path):
    vocabulary = read_draft_vocabulary(shallow_golden)

    def context_of(plant):
        build = builder("numpy", shallow_golden)

        def planted(precision, **options):
            made = build(precision=precision, **options)
            if "lanes" in options:
                plant(unguarded(made))
            return made

        return GateContext(shallow_golden, "numpy", planted, "bfloat16", tmp_path)

    def silent(batch):
        says = replace(batch.describe(), samples=False)
        batch.describe = lambda: says

    def without(batch):
        batch.sample_batch = None

    check = sampling_lanes.in_lanes(context_of(silent), [FULL], vocabulary, 4)
    assert check.verdict == "not judged" and "does not sample in lanes" in check.evidence
    with pytest.raises(DeviceFailed, match="sample_batch"):
        sampling_lanes.in_lanes(context_of(without), [FULL], vocabulary, 4)


@pytest.mark.parametrize("error", [ValueError, NotImplementedError, RuntimeError])
def test_a_factory_that_refuses_lanes_in_its_own_way_is_not_judged_and_one_that_breaks_is_told(
    error, shallow_golden, tmp_path
):
    build = builder("numpy", shallow_golden)

    def single(precision, **options):
        if "lanes" in options:
            raise error("one sequence only")
        return build(precision=precision, **options)

    context = GateContext(shallow_golden, "single", single, "bfloat16", tmp_path)
    if error is RuntimeError:
        with pytest.raises(RuntimeError):
            sampling_lanes.in_lanes(context, [FULL], read_draft_vocabulary(shallow_golden), 4)
    else:
        found = sampling_lanes.in_lanes(context, [FULL], read_draft_vocabulary(shallow_golden), 4)
        assert found.verdict == "not judged" and "one sequence only" in found.evidence


def test_lanes_in_a_process_of_their_own_sample_the_same(shallow_golden):
    prompts = [prompt.ids for prompt in shallow_golden.manifest.case.prompts]
    plays = [Play(settings, lane, prompts[lane], 5, table((lane,), 5, 4)) for lane, settings in enumerate((FULL, HOT))]
    made = []
    for limits in (None, ProcessLimits()):
        one = builder("numpy,lanes=2", shallow_golden, limits)("bfloat16")
        made.append([[[*seen.tokens] for seen in rounds] for rounds in sampled_together(one, plays, (1, 0))])
    alone = builder("numpy", shallow_golden)("bfloat16")
    assert made[0] == made[1] == [[[*seen.tokens] for seen in sampled(alone, play)] for play in plays]
