"""The five verbs: lossless tokens, exact bookkeeping, caches that never show what was rejected."""

import numpy as np
import pytest

from parity import device as package
from parity.errors import UsageError


def forcing(chosen):
    """A tap that replaces the stages in `chosen`: a function of the value for each."""

    def tap(stage, value):
        return chosen[stage](value) if stage in chosen else value

    return tap


def poison(model):
    """NaN wherever no row of the sequence lives: behind the length, and in the trash slot."""
    for pair in model.caches:
        for cache in pair:
            cache[0, model.length :] = np.float32(np.nan)


def cache_rows(model):
    return [one.held[0].copy() for pair in model.caches for one in pair]


@pytest.mark.parametrize("k", [1, 2, 4, 7])
def test_speculative_decoding_emits_what_plain_decoding_emits(load, prompts, plain, k):
    device = load(k)
    for prompt, tokens in zip(prompts, plain, strict=True):
        run = device.generate(prompt, 15)
        assert run.tokens == tokens[:15]
        assert len(run.tokens) == 15 == 1 + sum(run.acceptance_lengths)


@pytest.mark.parametrize("right", [0, 1, 3, 4])
def test_a_round_accepts_exactly_the_drafts_that_are_right(load, prompts, plain, right):
    device = load(4)

    def drafts(_value):
        truth = np.array(plain[1][sum(lengths) + 1 :][:4])
        return np.where(np.arange(4) < right, truth, (truth + 1) % 77)

    lengths, tokens = [], [device.prefill(prompts[1], 25)]
    while len(tokens) < 11:
        chosen = device.draft(forcing({"drafter.draft_tokens": drafts}))
        emitted = device.commit(chosen, device.verify(chosen))
        lengths.append(len(emitted))
        tokens += emitted.tolist()
    assert set(lengths) == {right + 1}
    assert tokens == plain[1][: len(tokens)]
    assert device.target.length == 19 + len(tokens) - 1
    assert device.drafter.length == device.target.length - right - 1


def test_generation_stops_at_the_first_end_token_even_inside_a_round(checkpoints, prompts, plain):
    plain = plain[1]
    assert plain.index(plain[3]) == 3, "the fourth token must be new, choose another prompt"
    device = package.load(*checkpoints({"eos_token_id": [76, plain[3]]}), 4, precision="float32")
    assert device.decode_plain(prompts[1], 12) == plain[:4]
    assert device.generate(prompts[1], 12).tokens == plain[:4]
    run = device.generate(prompts[1], 12, forcing({"drafter.draft_tokens": lambda _value: np.array(plain[1:5])}))
    assert (run.tokens, run.acceptance_lengths, run.accepted_drafts) == (plain[:4], [3], [3])
    with pytest.raises(UsageError, match="ended"):
        device.draft()


def test_a_round_cut_by_the_budget_counts_what_came_out(load, prompts, plain):
    device, plain = load(4), plain[1]
    run = device.generate(prompts[1], 3, forcing({"drafter.draft_tokens": lambda _value: np.array(plain[1:5])}))
    assert run.tokens == plain[:3]
    assert (run.acceptance_lengths, run.accepted_drafts) == ([2], [2])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_rollback_keeps_the_committed_rows_bit_for_bit_and_clears_the_rest(load, prompts, precision):
    device = load(4, precision)
    device.prefill(prompts[1], 30)
    for _ in range(3):
        drafts = device.draft()
        verified = device.verify(drafts)
        written = {model: cache_rows(model) for model in (device.target, device.drafter)}
        device.commit(drafts, verified)
        for model, before in written.items():
            for old, new in zip(before, cache_rows(model), strict=True):
                np.testing.assert_array_equal(new[: model.length], old[: model.length], err_msg=model.side)
                assert not new[model.length :].any(), model.side


@pytest.mark.parametrize("k", [1, 4])
def test_slack_rows_and_padding_are_never_seen(load, prompts, k):
    device = load(k, "bfloat16")
    clean = device.generate(prompts[1], 12)
    tokens, emitted = [device.prefill(prompts[1], 12)], []
    while not device.finished:
        poison(device.target), poison(device.drafter)
        drafts = device.draft()
        behind = device.drafter.length + (len(emitted) if emitted else 1) + k - 1
        assert np.isnan(device.drafter.caches[0][0].held[0, behind:-1]).all(), "padding wrote to the cache"
        emitted = device.commit(drafts, device.verify(drafts)).tolist()
        tokens += emitted
    assert tokens == clean.tokens


def test_committed_rows_are_fed_again_with_their_true_hiddens(load, prompts):
    """After any number of rounds the drafter's cache is that of one prefill over the whole text."""
    device = load(4)
    run = device.generate(prompts[1], 14)
    drafter = [rows[: device.drafter.length] for rows in cache_rows(device.drafter)]
    text = np.concatenate([prompts[1], run.tokens])[: device.drafter.length + 1]
    device.prefill(text, 1)
    assert device.drafter.length == len(text) - 1
    for incremental, whole in zip(drafter, cache_rows(device.drafter), strict=True):
        # Float32 sums in another order.
        np.testing.assert_allclose(incremental, whole[: len(incremental)], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("spare", [0, 1])
def test_the_last_rows_of_the_cache_are_as_good_as_the_first(load, prompts, plain, spare):
    tight = load(4, max_positions=19 + 15 + 4 + spare)
    assert tight.generate(prompts[1], 15).tokens == plain[1][:15]
    assert tight.describe().max_positions == 38 + spare


def test_one_row_too_many_is_refused_before_anything_is_computed(load, prompts):
    said = r"^max_positions: 19 .* 20 .* K = 4 do not fit the 42 rows of the cache \(the option max_positions\)\.$"
    with pytest.raises(UsageError, match=said):
        load(4, max_positions=42).prefill(prompts[1], 20)


def test_a_full_round_at_the_very_end_stays_inside_the_cache(load, prompts, plain):
    """All drafts right until the budget: the highest positions a run can reach."""
    device, plain = load(7, max_positions=19 + 25 + 7), plain[1][:25]
    seen = [1]

    def drafts(_value):
        truth = (plain[seen[-1] :] + [0] * 7)[:7]
        seen.append(seen[-1] + 8)
        return np.array(truth)

    run = device.generate(prompts[1], 25, forcing({"drafter.draft_tokens": drafts}))
    assert run.tokens == plain
    assert run.acceptance_lengths == [8, 8, 8]


def test_a_new_prefill_forgets_the_sequence_before(load, prompts):
    device = load(3)
    first = device.generate(prompts[1], 9)
    device.generate(prompts[2], 9)
    assert device.generate(prompts[1], 9) == first


@pytest.mark.parametrize(
    ("prompt", "budget", "message"),
    [
        ([5], 8, "prompt_ids: 1 tokens are too few"),
        ([5, 77], 8, "prompt_ids: an id lies outside the vocabulary of 77"),
        ([5, -1], 8, "prompt_ids: an id lies outside"),
        ([5, 6], 0, "max_new_tokens: 0 is not a budget"),
        ([5.5, 6.5], 8, "token ids: 2 integers are expected"),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused(load, prompt, budget, message):
    with pytest.raises(UsageError, match=message):
        load().prefill(prompt, budget)


def test_a_round_before_prefill_and_more_drafts_than_k_are_refused(load, prompts):
    device = load(4)
    with pytest.raises(UsageError, match="prefill comes first"):
        device.draft()
    device.prefill(prompts[0], 9)
    with pytest.raises(UsageError, match="5 drafts are more than K = 4"):
        device.verify(np.arange(5))


def test_a_full_draft_vocabulary_needs_no_d2t(checkpoints, prompts):
    def whole(tensors):
        del tensors["d2t"], tensors["t2d"]

    device = package.load(*checkpoints(drafter={"draft_vocab_size": 77}, edit_drafter=whole), 3, precision="float32")
    assert device.generate(prompts[1], 9).tokens == device.decode_plain(prompts[1], 9)
    assert not device.drafter.outer["d2t"].held.any()


def test_the_device_says_what_it_is_made_of(load):
    said = load(4, "bfloat16").describe()
    assert (said.name, said.precision, said.k) == ("numpy", "bfloat16", 4)
    assert (said.num_layers, said.num_drafter_layers, said.max_positions) == (6, 3, 96)
    assert {"parity.device", "parity.device.kernels.moe", "parity.device.engines.numpy_engine"} <= set(said.modules)
    assert said.eos == ()
    assert "numpy" in said.versions
