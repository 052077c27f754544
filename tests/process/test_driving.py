"""What a device returns in a free run is tokens: nothing is rounded into one; and what is said of where it fails."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity import drive
from parity.errors import DeviceFailed
from parity.rounds import generate
from parity.seam import Description


def emitting(first, fresh, k=1):
    """A device that emits `first`, then `fresh` in every round."""
    tokens = np.array([7, 8])
    return SimpleNamespace(
        describe=lambda: Description("emitting", "bfloat16", 1, 1, k, 100), prefill=lambda ids, budget, tap: first,
        draft=lambda tap: tokens[:1], verify=lambda drafts, tap: tokens, commit=lambda drafts, verified, tap: fresh,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "fresh"), [(np.float32(3.5), [7, 8]), (3.0, [7, 8]), (5, np.array([7.9, 8.0])), (5, [7, None])]
)
def test_what_is_no_integer_is_no_token(first, fresh):
    with pytest.raises(TypeError, match="integer"):
        generate(emitting(first, fresh), (1, 2), 3)


@pytest.mark.parametrize(("first", "fresh"), [(-1, [7, 8]), (5, [7, -8]), (2**31, [7, 8])])
def test_what_is_no_id_is_said_in_a_sentence(first, fresh):
    """It was pydantic's own, with an address to read on."""
    with pytest.raises(ValueError, match=r"^it emitted (-1|-8|2147483648), which is no token's id$"):
        generate(emitting(first, fresh), (1, 2), 3)


@pytest.mark.parametrize("kind", [int, np.int32, np.int64, np.array])
def test_every_kind_of_integer_is_one(kind):
    assert generate(emitting(kind(5), [kind(7), kind(8)]), (1, 2), 3).emitted == (5, 7, 8)


def test_another_number_of_drafts_than_it_describes_is_said_where_it_happens():
    """It showed rounds later, as a drafter that skipped one."""
    with pytest.raises(DeviceFailed, match="failed in draft: it drafted 1 tokens in place of the 3 that it describes"):
        generate(emitting(5, [7, 8], k=3), (1, 2), 3)
    assert generate(emitting(5, [7, 8], k=3), range(97), 3).emitted == (5, 7, 8), "no room for more of them"


def test_where_a_device_fails_says_whether_its_prompt_ran_freely(monkeypatch):
    def free_rounds(*of):
        yield "a verb"
        return "what it emitted"

    monkeypatch.setattr(drive, "free_rounds", free_rounds)
    trace = SimpleNamespace(round=4, idle=False)
    run = drive._freely(None, (1,), 8, None, trace)
    assert drive._at("list", trace) == "prompt list, round 4" and next(run) == "a verb"
    assert drive._at("list", trace) == "prompt list, its free run"
    with pytest.raises(StopIteration) as ended:
        next(run)
    assert ended.value.value == "what it emitted" and drive._at("list", trace) == "prompt list, round 4"
