"""Through a view of layer kernels: what is wrong with choices and weights of experts that the device does not show, and
with some passes alone, is named by what the layer makes of it."""

from __future__ import annotations

import pytest

from parity import producers
from parity.api import diagnose_device
from parity.diagnose import whole
from parity.references.hypotheses import passes, routing
from tests.diagnose.test_honest import Q, red
from tests.diagnose.test_search import times
from tests.diagnose.toys import Toy, explained
from tests.sample import WHOLE, by_night

ROUTING = (
    *(routing.routing, routing.limited, routing.crowded, routing.router),
    *(routing.choices, routing.numbered, routing.routed),
)
RELATED = {
    *(one.id for family in ROUTING for one in family.hypotheses),
    *(
        one.id
        for family in ROUTING
        for passing in ("verify", "prefill")
        for one in passes.in_passes(family.hypotheses, passing)
    ),
}
"""What else routes another way; by night the whole catalogue is searched."""

CASES = {
    "choose_third_expert": "ffn-runner-up",
    "skip_router_bias_verify": "ffn-router-bias-in-verify",
    "ffn_topk_lowest": "ffn-last-expert-lowest",
    "skip_small_share": "ffn-small-weight-dropped",
    "skip_expert_capacity": "ffn-expert-capacity",
    "skip_experts_verify": "ffn-missing-in-verify",
}
SAMPLE = ("choose_third_expert",)


@pytest.fixture
def related(monkeypatch):
    """The references with the hypotheses about routing; by night with all."""

    def counterfactuals(golden, threads):
        reference, hypotheses = producers.counterfactuals(golden, threads)
        return reference, [one for one in hypotheses if WHOLE or one.id in RELATED]

    monkeypatch.setattr(whole, "counterfactuals", counterfactuals)


@by_night
@pytest.mark.parametrize("fault", CASES if WHOLE else SAMPLE)
def test_what_a_layer_does_with_hidden_experts_is_named(fault, shallow_golden, related):
    found = diagnose_device(shallow_golden, f"parity.device.faults:{fault},show=layer-kernels")
    assert found.causes and found.causes[0].hypothesis == CASES[fault], found


def in_passes(name: str, passing: str) -> Toy:
    """The stage is 1.1 times what it should be in such passes."""
    return Toy(
        name,
        Q,
        lambda value, round_, x: x * 1.1 if (round_ > 0) == (passing == "verify") else x,
        (None,),
        passes=passing,
    )


@pytest.mark.parametrize(("first", "others", "named"), [(1, (), "late"), (0, (1,), "early")])
def test_a_hypothesis_about_some_passes_is_tried_where_these_alone_fail(first, others, named, tmp_path):
    asked = []

    def told(hypothesis):
        inner = hypothesis.change
        return Toy(
            hypothesis.id,
            Q,
            lambda value, round_, x: asked.append(hypothesis.id) or inner(value, round_, x),
            (None,),
            passes=hypothesis.passes,
        )

    def plant(pair) -> None:
        times(1.1, first)(pair)
        for later in others:
            times(1 / 1.1, later)(pair)

    found = explained(red(plant, tmp_path), [told(in_passes("early", "prefill")), told(in_passes("late", "verify"))])
    assert [cause.hypothesis for cause in found.causes] == [named] and set(asked) == {named}, found


def test_what_makes_a_right_prefill_wrong_is_not_run_further(tmp_path):
    rounds = set()

    def everywhere(value, round_, x):
        rounds.add(round_)
        return x * 1.1

    late = in_passes("late", "verify")
    found = explained(red(times(1.1, 1), tmp_path), [Toy("everywhere", Q, everywhere, (None,)), late])
    assert [cause.hypothesis for cause in found.causes] == ["late"] and rounds <= {0}, (found, rounds)
