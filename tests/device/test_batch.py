"""Several sequences at once on the bundled device: what each is alone, in one call of every program."""

from __future__ import annotations

import numpy as np
import pytest

from parity import device
from parity.batching import perform_together
from parity.device.engines.lockstep import Lockstep
from parity.errors import UsageError
from parity.families import FAMILIES
from parity.rounds import free_rounds, generate
from tests.sample import first, sample

PROMPTS = [[int(token) for token in np.random.default_rng(count).integers(3, 900, count)] for count in (7, 40, 33, 70)]
BUDGET = 7


@pytest.fixture(scope="module")
def tiny(three_layers):
    return three_layers


def together(made, k=None):
    scripts = (free_rounds(made, prompt, BUDGET, k) for prompt in PROMPTS)
    return [value for _, value in sorted(perform_together(made, enumerate(scripts)))]


def shared(made):
    """The share of calls that were of several lanes."""
    some, _, every, *_ = made.describe().notes["batch"].split()
    return int(some) / int(every)


@pytest.mark.parametrize("family", sample(FAMILIES, kind=lambda family: FAMILIES[family].chain))
def test_every_lane_emits_what_its_sequence_emits_alone(family, tiny):
    """Four sequences in three lanes: prompts of any lengths, other counts accepted, one joins in mid-generation."""
    pair = dict(target=tiny / "target", drafter=tiny / FAMILIES[family].checkpoint, k=4, precision="float32")
    alone = device.load(**pair)
    made = device.load(**pair, lanes=3)
    assert together(made) == [generate(alone, prompt, BUDGET) for prompt in PROMPTS]
    assert shared(made) > 0.4


@pytest.mark.parametrize("options", first([dict(tp=2), dict(partial_kv="1+2+1x8"), dict(engine="xla")]))
def test_lanes_go_with_ranks_with_compiled_programs_and_with_partial_caches(options, tiny):
    if "engine" in options:
        pytest.importorskip("jax", reason="the xla engine needs jax: pip install 'parity-harness[xla]'")
    pair = dict(target=tiny / "target", drafter=tiny / "drafter", k=3, precision="float32", max_positions=96)
    alone = device.load(**pair, **options)
    made = device.load(**pair, **options, lanes=4)
    assert together(made) == [generate(alone, prompt, BUDGET) for prompt in PROMPTS]
    assert shared(made) > 0.8


def test_each_lane_drafts_as_many_as_its_round_asks_for(tiny):
    pair = dict(target=tiny / "target", drafter=tiny / "drafter", k=4, precision="float32")
    ks = lambda round_: (4, 0, 2)[(round_ - 1) % 3]  # noqa: E731
    alone = device.load(**pair)
    assert together(device.load(**pair, lanes=2), ks) == [generate(alone, prompt, BUDGET, ks) for prompt in PROMPTS]


def test_a_tap_that_raises_leaves_every_lane_as_it_was(tiny):
    made = device.load(tiny / "target", tiny / "drafter", 3, lanes=2)
    quiet = lambda stage, value: value  # noqa: E731

    def raising(stage, value):
        raise RuntimeError("on purpose")

    made.prefill_batch([0, 1], PROMPTS[:2], [8, 8], [quiet, quiet])
    drafts = made.draft_batch([0, 1], [quiet, quiet])
    before = [lane.target.length for lane in made.lanes]
    with pytest.raises(RuntimeError, match="on purpose"):
        made.verify_batch([0, 1], drafts, [quiet, raising])
    assert [lane.target.length for lane in made.lanes] == before
    tokens = made.verify_batch([0, 1], drafts, [quiet, quiet])
    assert all(len(emitted) for emitted in made.commit_batch([0, 1], drafts, tokens, [quiet, quiet]))


@pytest.mark.parametrize(("options", "said"), [(dict(lanes=0), "lanes: 0 is no"), (dict(lanes=2, batch=2), "exclude")])
def test_lanes_that_cannot_be_are_refused(options, said, tiny):
    with pytest.raises(UsageError, match=said):
        device.load(tiny / "target", tiny / "drafter", 3, **options)


def test_jobs_meet_where_most_of_them_wait_and_errors_reach_their_own():
    lockstep, calls = Lockstep(), []

    def both(many):
        calls.append(many)
        return [sum(many)] * len(many)

    def job(number, places):
        return [lockstep.meet(place, number, both) for place in places]

    found = lockstep.run([lambda: job(1, "ab"), lambda: job(2, "ab"), lambda: job(4, "b")])
    assert found == [[3, 7], [3, 7], [7]] and calls == [[1, 2], [1, 2, 4]]
    assert (lockstep.calls, lockstep.shared) == (2, 2)

    def failing(many):
        raise KeyError(*many)

    with pytest.raises(KeyError, match="5"):
        lockstep.run([lambda: lockstep.meet("x", 5, failing), lambda: job(1, "a")])
