"""A port that hides every second layer: a defect in a hidden one is read there, as if it were shown."""

from __future__ import annotations

import pytest

from parity.api import diagnose_device
from parity.builders import builder
from parity.diagnose.causes import parts_of
from parity.diagnose.deduced import HiddenLayers
from parity.diagnose.failing_run import failing_run
from parity.diagnose.hidden_layers import hidden_layers
from parity.diagnose.trials import PromptTrials
from parity.drive import run_device
from parity.golden.store import Dump
from parity.golden.views import GoldenSlice
from parity.oracles import ReferenceRerun
from parity.policy import read_policy
from parity.producers import counterfactuals
from parity.progress import quiet
from parity.run_request import RunRequest
from tests.sample import WHOLE, by_night

SEEN = "target.embed+target.layers.1.out+target.logits+verify.logits+drafter.taps+drafter.layers.1.out"
CACHES = f"{SEEN}+kv.*"
HIDDEN = HiddenLayers("target.layers.1.out", ("target.layers.0.out",))
DEVICE = "tests.diagnose.devices:other_norms"


@pytest.fixture(scope="module")
def seen(two_layer_golden, tmp_path_factory):
    """What tries hypotheses on the first rounds of a device, by its name, and what fails in them."""
    golden = GoldenSlice(two_layer_golden, 0, 2)
    reference, _ = counterfactuals(golden, 1)
    held = {}

    def made(name: str, precision: str = "float32"):
        policy = read_policy(None, precision)
        device = builder(name, golden)(precision=precision)
        run = run_device(RunRequest(device, golden, "local", (), tmp_path_factory.mktemp("seen") / "run"))
        red = failing_run(golden, Dump(run), policy, ReferenceRerun(quiet))
        trials = PromptTrials(red.golden, red.run, red.number, policy, lambda one: held.setdefault(one, reference(one)))
        return trials, red.residuals()

    return made


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=by_night)])
def test_a_hidden_layer_is_led_back_and_its_part_is_read(seen, precision):
    trials, failing = seen(f"{DEVICE},layers=0,of=1,show={CACHES}", precision)
    assert hidden_layers(trials, failing) == HIDDEN
    deduced = trials.with_hidden(HIDDEN)
    left = deduced.residuals((), deduced.rounds)["target.layers.0.out"]
    assert left.red and "target.layers.0.attn_in" in deduced.segment(left)
    (part,) = parts_of(deduced, deduced.rounds, "target.layers.0.out")
    assert part.says == "the second norm: the weight of layer 1's" and part.explained > 0.99


def test_a_layer_that_is_shown_and_wrong_itself_deduces_nothing(seen):
    trials, failing = seen(f"{DEVICE},layers=1,of=0,show={CACHES}")
    assert hidden_layers(trials, failing) is None
    if WHOLE:
        (part,) = parts_of(trials, trials.rounds, "target.layers.1.out")
        assert part.says == "the second norm: the weight of layer 0's" and part.whole


def test_what_is_wrong_in_all_layers_of_a_kernel_is_read_of_them_together(seen):
    trials, failing = seen(f"{DEVICE},layers=01,show={CACHES}")
    assert hidden_layers(trials, failing) is None
    (part,) = parts_of(trials, trials.rounds, "target.layers.1.out")
    assert part.says == "in layers 0 and 1 alike: the second norm: the norm's weight in fp8 (e4m3)" and part.whole


@by_night
def test_where_caches_are_hidden_a_part_that_explains_all_tells(seen):
    trials, failing = seen(f"{DEVICE},layers=0,show={SEEN}")
    assert hidden_layers(trials, failing) == HIDDEN


@by_night
def test_where_caches_are_hidden_a_part_of_the_shown_layer_comes_first(seen):
    trials, failing = seen(f"{DEVICE},layers=1,show={SEEN}")
    assert hidden_layers(trials, failing) is None


def test_nothing_is_deduced_where_no_layer_is_hidden_or_errors_travel(seen, monkeypatch):
    trials, failing = seen(f"{DEVICE},layers=0,of=1,show={CACHES}+target.layers.0.out")
    assert hidden_layers(trials, failing) is None
    trials, failing = seen(f"{DEVICE},layers=0,of=1,show={CACHES}")
    assert hidden_layers(trials, ()) is None
    monkeypatch.setattr(trials.counterfactuals, "mode", "chained")
    assert hidden_layers(trials, failing) is None


@by_night
def test_a_diagnosis_says_where_and_what(two_layer_golden):
    found = diagnose_device(two_layer_golden, f"{DEVICE},layers=0,show={CACHES}", "bfloat16", limit=40)
    (part,) = (part for stage, part in found.components if stage == "target.layers.0.out")
    assert part.says == "the second norm: the norm's weight in fp8 (e4m3)" and part.whole
    assert found.hidden == HIDDEN and found.unexplained.stage == "target.layers.0.out"


@by_night
def test_a_limit_that_is_over_at_once_ends_the_search_and_nothing_else(two_layer_golden):
    found = diagnose_device(two_layer_golden, f"{DEVICE},layers=0,show={CACHES}", "float32", limit=0.01)
    assert found.untried and found.hidden == HIDDEN and found.unexplained is not None
