"""vLLM's steps into rounds, on made-up steps: what is padding, where a row sits, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from parity.errors import UsageError
from parity.references.vllm_capture.rounds import Rounds
from parity.references.vllm_capture.steps import Step

K, PROMPT, BUDGET, EOS, BLOCK = 2, 3, 4, (9,), 4


def step(number: int, ids, rejected, masked, slots, positions, sampled, rows: int, logits, drafts) -> Step:
    """A step of one request whose every hidden row is its own number."""
    width = len(ids)
    first = next(index for index, one in enumerate(masked) if one) - 1
    return Step(
        number,
        ("0",),
        BLOCK,
        {
            "target.starts": np.array([0, rows]),
            "target.embed": np.arange(rows, dtype=np.float32)[:, None],
            "target.logits": np.float32(logits),
            "verify.logits": np.float32(logits)[-1 if number == 0 else 0 :],
            "verify.rows": np.arange(rows)[-1 if number == 0 else 0 :],
            "sampled": np.array([sampled]),
            "drafter.starts": np.array([0, width]),
            "drafter.taps": np.arange(rows, dtype=np.float32)[:, None],
            "drafter.input_ids": np.array(ids, np.int32),
            "drafter.positions": np.array(positions),
            "drafter.fc_out": np.arange(width, dtype=np.float32)[:, None],
            "drafter.normed": 10 + np.arange(width, dtype=np.float32)[:, None],
            "drafter.masked": np.array(masked),
            "drafter.rejected": np.array(rejected),
            "drafter.slots": np.array(slots),
            "drafter.blocks": np.array([[7, 2]], np.int32),
            "drafter.sampled_rows": np.arange(first, first + K, dtype=np.int32),
            "drafter.logits": np.zeros((K, 5), np.float32),
            "drafter.draft_tokens": np.array([drafts]),
        },
    )


def scores(*tokens: int) -> np.ndarray:
    return np.eye(10)[list(tokens)]


@pytest.fixture
def steps() -> list[Step]:
    """Prefill of three tokens; then a round that accepts one of two drafts, with the rejected row last."""
    prefill = step(
        0,
        ids=[1, 2, 3, 0],
        rejected=[False] * 4,
        masked=[False, False, False, True],
        slots=[28, 29, 30, 31],
        positions=[0, 1, 2, 3],
        sampled=[3],
        rows=PROMPT,
        logits=scores(1, 2, 3),
        drafts=[4, 8],
    )
    verify = step(
        1,
        ids=[4, 5, 0, 0],
        rejected=[False, False, False, True],
        masked=[False, False, True, False],
        slots=[31, 8, 9, -1],
        positions=[3, 4, 5, 0],
        sampled=[4, 5, -1],
        rows=K + 1,
        logits=scores(4, 5, 6),
        drafts=[6, 7],
    )
    return [prefill, verify]


def rounds(steps: list[Step], budget: int = BUDGET) -> Rounds:
    return Rounds(steps, "0", PROMPT, K, budget, EOS)


def test_a_prefill_is_round_0_and_the_draft_of_round_1(steps):
    found = rounds(steps).tensors
    assert found[0, "drafter.input_ids"].tolist() == [1, 2] and found[1, "drafter.input_ids"].tolist() == [3, 0]
    assert found[0, "drafter.taps"].ravel().tolist() == [0, 1] and found[1, "drafter.taps"].ravel().tolist() == [2]
    assert found[1, "drafter.pre_head_hidden"].ravel().tolist() == [12, 13]
    assert found[0, "target.tokens"].tolist() == [1, 2, 3] and (1, "target.tokens") not in found


def test_rejected_rows_are_no_rows(steps):
    found = rounds(steps).tensors
    assert found[2, "drafter.input_ids"].tolist() == [4, 5, 0] and len(found[2, "drafter.taps"]) == 2
    assert found[2, "drafter.fc_out"].ravel().tolist() == [0, 1, 2]


def test_slots_are_places_in_the_sequence(steps):
    found = rounds(steps).tensors
    assert [found[r, "drafter.slots"].tolist() for r in (0, 1, 2)] == [[0, 1], [2, 3], [3, 4, 5]]


def test_what_was_accepted(steps):
    found = rounds(steps)
    assert found.generation.emitted == (3, 4, 5) and found.consistent
    assert found.generation.acceptance_length == (2,) and found.generation.accepted_drafts == (1,)


def test_the_budget_and_an_end_token_cut_a_round(steps):
    assert rounds(steps, budget=2).generation.emitted == (3, 4)
    steps[1].tensors["sampled"] = np.array([[9, 5, -1]])
    found = rounds(steps)
    assert found.generation.emitted == (3, 9) and found.generation.finish == "eos" and not found.consistent
    assert (2, "drafter.input_ids") not in found.tensors


def test_a_chunked_prefill_is_refused(steps):
    with pytest.raises(UsageError, match="was a prefill chunked"):
        Rounds(steps, "0", PROMPT + 1, K, BUDGET, EOS)


def test_another_order_of_rows_is_refused(steps):
    steps[1].tensors["drafter.masked"] = np.array([True, False, False, False])
    with pytest.raises(UsageError, match="are not the committed rows"):
        rounds(steps)


def test_drafts_from_other_rows_are_refused(steps):
    steps[1].tensors["drafter.sampled_rows"] = np.array([0, 1])
    with pytest.raises(UsageError, match="samples from rows"):
        rounds(steps)


@pytest.fixture
def chained(steps) -> list[Step]:
    """The same steps of a drafter that runs twice: a chain's row in the place of the masked one."""
    for one, last in zip(steps, (3, 2), strict=True):
        tensors = one.tensors
        for name in ("input_ids", "positions", "fc_out", "normed", "slots"):
            value = tensors[f"drafter.{name}"]
            tensors[f"chain.1.{name}"] = (
                100 + value[last : last + 1] if name in ("fc_out", "normed") else value[last : last + 1]
            )
        tensors["chain.1.input_ids"] = tensors["drafter.draft_tokens"][:, 0].astype(np.int32)
        tensors["chain.1.logits"] = np.ones((1, 5), np.float32)
        tensors["drafter.logits"] = tensors["drafter.logits"][:1]
        tensors["drafter.masked"] = np.zeros(len(tensors["drafter.input_ids"]), bool)
        tensors["drafter.rejected"] = np.arange(len(tensors["drafter.slots"])) >= last
        tensors["drafter.sampled_rows"] = np.array([last - 1], np.int32)
    return steps


def test_a_chains_rows_stand_behind_the_committed_ones(chained):
    found = rounds(chained).tensors
    assert found[1, "drafter.input_ids"].tolist() == [3, 4] and found[2, "drafter.input_ids"].tolist() == [4, 5, 6]
    assert found[2, "drafter.positions"].tolist() == [3, 4, 5] and found[2, "drafter.slots"].tolist() == [3, 4, 5]
    assert found[2, "drafter.fc_out"].ravel().tolist() == [0, 1, 102] and len(found[2, "drafter.taps"]) == 2
    assert found[2, "drafter.pre_head_hidden"].ravel().tolist() == [11, 112]
    assert found[2, "drafter.logits"].tolist() == [[0] * 5, [1] * 5]
    assert found[0, "drafter.input_ids"].tolist() == [1, 2] and (0, "drafter.logits") not in found


def test_a_chain_that_lacks_a_pass_is_refused(chained):
    for name in chained[1].named("chain."):
        del chained[1].tensors[name]
    with pytest.raises(UsageError, match="are not the committed rows"):
        rounds(chained)


def test_a_chain_that_begins_elsewhere_is_refused(chained):
    chained[1].tensors["drafter.sampled_rows"] = np.array([0])
    with pytest.raises(UsageError, match="samples from rows"):
        rounds(chained)
