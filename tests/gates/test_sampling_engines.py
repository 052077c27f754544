"""EAGLE-3 samples the same on every engine, by the same numbers, up to rounding: who parts from whom, and at what.

In float32 nothing parts. In bfloat16 logits differ by a rounding or two, which moves the edges between tokens; a number
that lies between an edge here and there decides otherwise, and from there on the texts differ. Then each is still what
its own logits and the numbers call for: no other row, no other number, no other vocabulary.
"""

from __future__ import annotations

import numpy as np
import pytest

from parity import device
from parity.compare.sampling.replay import decisions
from parity.compare.vocabulary import DraftVocabulary
from parity.gates.sampling.rounds import Play, sampled, table
from parity.seam import Sampling
from tests.sample import WHOLE, by_night

K, BUDGET = 4, 12
SETTINGS = (Sampling(), Sampling(rule="match"), Sampling(temperature=1.5, top_k=20, top_p=0.9, min_p=0.02))


@pytest.fixture(scope="module")
def tiny(three_layers):
    return three_layers


@pytest.fixture(scope="module")
def loaded(tiny):
    """A device of the tiny EAGLE-3 pair, loaded once."""
    made = {}

    def load(precision, **options):
        key = precision, *sorted(options.items())
        if key not in made:
            made[key] = device.load(tiny / "target", tiny / "eagle3", K, precision, **options)
        return made[key]

    return load


def _vocabulary(pipeline):
    offsets = pipeline.engine.host(pipeline.drafter.outer["d2t"])
    return DraftVocabulary(np.arange(len(offsets)) + offsets, "d2t")


def _plays():
    ids = np.random.default_rng(0).integers(10, 900, 20).tolist()
    return [Play(settings, 0, ids, BUDGET, table((number,), BUDGET, K)) for number, settings in enumerate(SETTINGS)]


def _texts(pipeline):
    return [[token for seen in sampled(pipeline, play) for token in seen.emitted[0]] for play in _plays()]


def _wrong(pipeline):
    """Decisions that its own logits do not call for, and all of them."""
    vocabulary = _vocabulary(pipeline)
    made = [one for play in _plays() for seen in sampled(pipeline, play)
            for one in decisions(seen, play.settings, vocabulary)]  # fmt: skip
    return [one for one in made if not one.right], len(made)


OTHERS = ({"batch": 3}, {"moe": "gathered"}, {"engine": "xla"})


@pytest.mark.parametrize("options", OTHERS if WHOLE else OTHERS[:1], ids=str)
def test_in_float32_the_engines_emit_the_same(options, loaded):
    if "engine" in options:
        pytest.importorskip("jax")
    assert _texts(loaded("float32", **options)) == _texts(loaded("float32"))


@by_night
@pytest.mark.parametrize("options", OTHERS if WHOLE else OTHERS[1:], ids=str)
def test_in_bfloat16_each_emits_what_its_own_logits_call_for(options, loaded):
    if "engine" in options:
        pytest.importorskip("jax")
    wrong, count = _wrong(loaded("bfloat16", **options))
    assert not wrong and count > 60, wrong[:1]


@by_night
def test_in_bfloat16_they_part_on_xla_so_that_the_test_above_sees_something(loaded):
    pytest.importorskip("jax")
    assert _texts(loaded("bfloat16", engine="xla")) != _texts(loaded("bfloat16"))


def test_a_chain_that_draws_every_draft_by_the_first_number_is_no_rounding(tiny):
    chained = device.load(tiny / "target", tiny / "eagle3", K, "float32")

    class First(chained.make_sampler):
        def uniform(self, what, first, count):
            return super().uniform(what, 0 if what == "draft" else first, count)

    chained.make_sampler = First
    wrong, _ = _wrong(chained)
    assert wrong and {one.what for one in wrong} == {"draft"}
