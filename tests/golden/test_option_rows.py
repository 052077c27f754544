"""Options of a dump that do not go together, or that a reference does not take, by hand."""

from __future__ import annotations

import pytest

from parity.errors import UsageError
from parity.golden.asked import asked_smaller, refuse_options, refuse_unknown
from parity.golden.smaller import Smaller


def refused(reference: str = "own", k=4, tokens: int = 1, **options) -> str:
    try:
        refuse_options(reference, k, tokens, options)
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, ""),
        ({"tokens": 0}, "--max-new-tokens 0: at least 1 is needed"),
        ({"seed": 0}, ""),
        ({"seed": 1}, "--seed is of --sample: greedy tokens are not drawn"),
        ({"seed": 1, "sample": "temperature=1"}, ""),
        ({"reference": "eagle", "kv_cache": ""}, ""),
        ({"reference": "eagle", "sample": "temperature=1", "partial_kv": "1+2+1x8"},
         "--partial-kv is no option of --reference eagle"),
        ({"reference": "eagle", "sample": "temperature=1"}, "--sample is no option of --reference eagle"),
        ({"reference": "plain", "batch": 1}, ""),
        ({"reference": "plain", "batch": 2},
         "--batch goes with --memory: weights that are in memory are not visited"),
        ({"reference": "plain", "batch": 2, "memory": 0}, ""),
        ({"reference": "own", "batch": 2}, ""),
        ({"reference": "plain", "memory": 0, "roundings": 1}, ""),
        ({"reference": "plain", "memory": 0, "roundings": 2},
         "--memory goes with one rounding: others need all weights in another order"),
        ({"reference": "plain", "roundings": 2}, ""),
        ({"reference": "plain", "kv_cache": "fp8_e4m3"}, ""),
        ({"reference": "plain", "kv_cache": "fp8_e4m3", "memory": 0},
         "--kv-cache goes with weights in memory, not with --memory"),
        ({"sketch": 8, "sample": "temperature=1"},
         "--sketch and --logits are of greedy goldens: what tokens are drawn from is needed whole"),
        ({"positions": "1", "sample": "temperature=1"}, ""),
        ({"logits": "top:4", "kv_cache": "fp8_e4m3"},
         "--sketch, --logits and --positions are of goldens without --kv-cache: such caches are kept whole"),
        ({"positions": "1", "kv_cache": "fp8_e4m3"},
         "--sketch, --logits and --positions are of goldens without --kv-cache: such caches are kept whole"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_are_told(asked, said):
    assert refused(**asked) == said


def test_options_say_what_is_kept_by_name():
    assert asked_smaller({"sketch": 8, "positions": "1", "seed": 5}) == Smaller(sketch=8, positions="1")
    assert asked_smaller({}) == Smaller()


@pytest.mark.parametrize(
    ("reference", "takes", "schedule", "options", "said"),
    [
        ("own", {"schedule", "memory"}, (4, 2), {"memory": 1}, ""),
        ("own", {"memory"}, (4, 2), {}, "--reference own drafts K tokens in every round: name one number with -k"),
        (
            "eagle",
            {"schedule"},
            (4, 2),
            {},
            "--reference eagle drafts K tokens in every round: name one number with -k",
        ),
        ("eagle", {"schedule"}, (), {}, ""),
        ("own", {"schedule"}, (), {"sketch_seed": 1, "memory": 1}, "--memory is no option of --reference own"),
        ("own", {"memory"}, (), {"sketch_seed": 1, "memory": 1}, "--sketch-seed is no option of --reference own"),
        ("own", set(), (), {"max_bytes": 1}, "--max-bytes is no option of --reference own"),
    ],
)
def test_an_option_that_a_reference_has_no_field_for_is_told(reference, takes, schedule, options, said):
    try:
        refuse_unknown(reference, takes, schedule, options)
    except UsageError as error:
        assert str(error) == said
    else:
        assert not said
