"""What a case may hold, by hand: bounds of its numbers, K of each round, and how tokens are drawn."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from parity import limits
from parity.errors import UsageError
from parity.golden.case import Case, Generation, KeptStages, PromptCase, declared_shown
from parity.sampling import as_text
from parity.seam import DRAWS, Shown

TOLD = Generation(emitted=(5, 6), acceptance_length=(1,), accepted_drafts=(0,), finish="length")


def case(**more) -> Case:
    given = dict(k=2, max_new_tokens=3, precision="float32", mode="golden", forced=(), prompts_digest="x", prompts=())
    return Case(**given | more)


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [
        ("k", 1, limits.DRAFTS),
        ("max_new_tokens", 1, limits.TOKENS),
        ("roundings", 1, None),
        ("lanes", 1, limits.LANES),
        ("seed", 0, 2**63 - 1),
    ],
)
def test_a_number_of_a_case_is_within_its_bounds(field, least, most):
    for number in (least, *([] if most is None else [most])):
        assert getattr(case(**{field: number}), field) == number
    for number in (least - 1, *([] if most is None else [most + 1])):
        with pytest.raises(ValidationError, match=field):
            case(**{field: number})


def test_what_nobody_says_is_the_plain_thing():
    plain = case()
    assert (plain.roundings, plain.lanes, plain.seed, plain.layers) == (1, 1, 0, None)
    assert plain.schedule == plain.shown == plain.settled == plain.kept == () and plain.kv_scales == {}
    assert plain.partial_kv == plain.kv_cache == plain.sampling == plain.positions == ""


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("positions", "1-3,7", "3-x"),
        ("positions", "1" + ",1" * 2047, "1" + ",1" * 2048),  # 4,095 letters, 4,097
        ("positions", "12" + ",1" * 2047, "1234567" + ",1" * 2045),  # 4,096, 4,097
        ("sampling", "temperature=0.7,top_k=20", "Temperature"),
        ("sampling", "a" * 256, "a" * 257),
        ("kv_cache", "fp8_e4m3", "fp7"),
        ("layers", (0, 1), (-1, 1)),
        ("layers", (limits.LAYERS - 1, 1), (limits.LAYERS, 1)),
    ],
)
def test_a_text_of_a_case_is_of_its_form(field, good, bad):
    assert getattr(case(**{field: good}), field) == good
    if (field, bad) == ("positions", "1234567" + ",1" * 2045):
        assert len(good) == 4096 and len(bad) == 4097
    with pytest.raises(ValidationError, match=field):
        case(**{field: bad})


def test_k_of_a_round_is_the_schedules_from_the_first_one_again_behind_the_last():
    assert case(k=3).ks == (3,) and [case(k=3).drafts(round_) for round_ in (1, 2, 9)] == [3, 3, 3]
    turns = case(k=4, schedule=(4, 0, 2))
    assert turns.ks == (4, 0, 2) and [turns.drafts(round_) for round_ in (1, 2, 3, 4, 6)] == [4, 0, 2, 4, 2]


@pytest.mark.parametrize(("sampling", "draws"), [("", False), ("temperature=0.0", False), ("temperature=0.5", True)])
def test_tokens_are_drawn_at_a_temperature(sampling, draws):
    assert case(sampling=sampling).draws is draws


def test_how_a_prompt_is_drawn_is_its_settings_and_its_own_numbers():
    numbers = np.arange(3 * len(DRAWS) * 3, dtype=np.float32).reshape(3, len(DRAWS), 3) / 64
    prompts = tuple(
        PromptCase(id=str(n), ids=(1,), generation=TOLD, uniforms=as_text(numbers / (1 + n))) for n in (0, 1)
    )
    drawn = case(prompts=prompts, sampling="temperature=0.5,top_k=4")
    settings, own = drawn.sampled(1)
    assert (settings.temperature, settings.top_k) == (0.5, 4) and np.array_equal(own, numbers / 2)
    assert case(prompts=prompts).sampled(1) is None


def test_a_generation_is_asked_for_where_there_has_to_be_one():
    assert PromptCase(id="a", ids=(1,), generation=TOLD).generated is TOLD
    with pytest.raises(UsageError, match=r"^prompt a generated nothing freely$"):
        _ = PromptCase(id="a", ids=(1,), generation=None).generated


def test_a_sketch_has_a_seed_and_the_best_logits_have_none():
    assert KeptStages(stages="*", form="sketch", numbers=8, seed=3).seed == 3
    assert KeptStages(stages="*", form="top", numbers=8).seed == 0
    with pytest.raises(ValidationError, match="the best logits have no seed"):
        KeptStages(stages="*", form="top", numbers=8, seed=3)
    for more in ({"numbers": 0}, {"numbers": limits.SKETCH + 1}, {"seed": -1}, {"seed": 2**63}):
        with pytest.raises(ValidationError):
            KeptStages(**{"stages": "*", "form": "sketch", "numbers": 8} | more)
    assert KeptStages(stages="*", form="sketch", numbers=limits.SKETCH, seed=2**63 - 1).numbers == limits.SKETCH


def test_a_declaration_is_held_as_it_is_made():
    (record,) = declared_shown([Shown("target.*", when="round", rows="last")])
    assert (record.stages, record.when, record.rows) == ("target.*", "round", "last")
