"""The asynchronous loop: the synchronous one's tokens and caches, rounds sent ahead, nothing asked of the host."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity import device
from parity.bench.decoding import ByVerbs
from parity.bench.pair import with_room
from parity.device.ahead import Standing, rounds_ahead
from parity.device.batch import Batch
from parity.device.engines import numpy_engine
from parity.device.engines.stacked import owned
from parity.errors import UsageError
from parity.producers import read_prompts
from tests.sample import WHOLE, by_night, cover
from tests.shallow import cut_pair

LOOPS = ("synchronous", "asynchronous")
FAMILIES = ("drafter", "eagle3", "draft-model", "dflash")
PROMPT = [1266, *range(300, 352)]
"""53 tokens: the second round crosses the 64 rows at which arrays become wider."""


@pytest.fixture(scope="module")
def tiny(three_layers):
    return three_layers


def caches(pipeline):
    models = pipeline.target, pipeline.drafter
    return [pipeline.engine.host(one)[:, :-1] for model in models for pair in model.caches for one in pair]


ORDER = 32 * 2.0**-23
"""Of the largest number of a cache. The BLAS orders a product's sums: on an AMD EPYC the caches of five lanes
are up to 1.4e-6 off those of each alone, on other machines equal."""


def assert_same(waiting, ahead, within=0.0):
    """Lengths, and every row of every cache but the trash slot, dead ones included: bit for bit, or within a share of
    the cache's largest number."""
    for side in ("target", "drafter"):
        assert getattr(waiting, side).length == getattr(ahead, side).length, side
    for number, (right, own) in enumerate(zip(caches(waiting), caches(ahead), strict=True)):
        assert np.abs(right.astype(np.float64) - own).max() <= within * np.abs(right).max(), number


@pytest.fixture(scope="module")
def both(tiny):
    """The two loops of a tiny pair."""

    def load(drafter="drafter", k=4, precision="float32", chunk=2, **options):
        pair = tiny / "target", tiny / drafter
        return [device.load(*pair, k, precision, loop=loop, chunk=chunk, **options) for loop in LOOPS]

    return load


@pytest.mark.parametrize(
    ("family", "k", "precision", "chunk"),
    cover(
        [
            (family, k, precision, chunk)
            for family in FAMILIES
            for k in (1, 2, 4, 7)
            for precision in ("float32", "bfloat16")
            for chunk in (1, 3)
        ]
    ),
)
def test_both_loops_give_the_same_rounds_and_the_same_caches(family, k, precision, chunk, both):
    waiting, ahead = both(family, k, precision, chunk)
    assert ahead.generate(PROMPT, 14) == waiting.generate(PROMPT, 14)
    assert_same(waiting, ahead.pipeline)
    assert ahead.decode_plain(PROMPT, 9) == waiting.decode_plain(PROMPT, 9)


@pytest.mark.parametrize("options", [{"batch": 3}, {"moe": "gathered"}, {"prefill_rows": 16}])
def test_what_else_a_device_may_be_asked_for_goes_with_it(options, both):
    waiting, ahead = both(**options)
    assert ahead.generate(PROMPT, 10) == waiting.generate(PROMPT, 10)
    assert_same(waiting, ahead.pipeline)


def test_rounds_behind_an_end_token_change_nothing(checkpoints, prompts):
    """Random weights, with a token for an end that comes out amid the generation."""
    emitted = device.load(*checkpoints(), 4, "float32").generate(prompts[1], 30).tokens
    end = next(token for place, token in enumerate(emitted) if place > 5 and token not in emitted[:place])
    pair = checkpoints(target={"eos_token_id": end})
    waiting, ahead = (device.load(*pair, 4, "float32", loop=loop, chunk=3) for loop in LOOPS)
    right = waiting.generate(prompts[1], 30)
    assert right.tokens[-1] == end and len(right.tokens) < 30
    assert ahead.generate(prompts[1], 30) == right
    assert ahead.sent > len(right.acceptance_lengths), "no round ran past the end"
    assert_same(waiting, ahead.pipeline)


def test_a_budget_makes_no_round_run_past_the_end(load, prompts):
    ahead = load(loop="asynchronous", chunk=3)
    run = ahead.generate(prompts[2], 30)
    assert ahead.sent == len(run.acceptance_lengths)


def test_sequences_of_any_length_share_every_round_until_their_own_end(load, prompts):
    given = [*prompts, prompts[1][:7], prompts[2][5:]]
    budgets = [20, 3, 15, 1, 9]
    ahead = load(loop="asynchronous", chunk=2, max_positions=64)  # no pass is wider than another
    runs = ahead.generate_together(given, budgets)
    waiting = load(max_positions=64)
    for prompt, budget, run, lane in zip(given, budgets, runs, ahead.lanes, strict=True):
        assert run == waiting.generate(prompt, budget)
        assert_same(waiting, lane, ORDER)
    assert ahead.sent == max(len(run.acceptance_lengths) for run in runs)


def test_a_round_asks_the_host_for_nothing_and_is_read_once(load, prompts, monkeypatch):
    ahead, asked = load(loop="asynchronous", chunk=2), []

    def counting(name):
        clean = getattr(numpy_engine, name)
        return lambda *given, **named: (asked.append(name), clean(*given, **named))[1]

    counted = {name: counting(name) for name in ("array", "zeros", "host")}
    monkeypatch.setattr(ahead.pipeline, "_engine", SimpleNamespace(**vars(numpy_engine) | counted))
    run = ahead.generate(prompts[2], 30)
    rounds = len(run.acceptance_lengths)
    assert rounds > 4
    assert asked.count("host") == rounds + 3, "a round is read once; the first token and two lengths behind the last"
    assert asked.count("array") < 9, "arrays are made for the prefill and the first round alone"


def test_the_sequence_of_a_device_goes_on_from_nothing(both):
    _, ahead = both(k=3)
    first = ahead.generate(PROMPT, 12)
    ahead.generate(PROMPT[:20], 5)
    assert ahead.generate(PROMPT, 12) == first


@pytest.mark.parametrize(
    ("drafter", "options", "said"),
    [
        ("n-gram", {}, "a drafter of the family n-gram drafts on the host"),
        ("drafter", {"partial_kv": "1+2+1x8"}, "with partial KV the host says which pages"),
        ("drafter", {"tp": 2}, "it runs on one rank"),
        ("drafter", {"lanes": 2}, "one sequence behind the seam"),
        ("drafter", {"loop": "parallel"}, "'parallel' is unknown; there are synchronous, asynchronous"),
        ("drafter", {"chunk": 0}, "0 is no number of rounds"),
    ],
)
def test_what_it_cannot_do_is_refused_in_a_sentence(drafter, options, said, tiny):
    with pytest.raises(UsageError, match=said):
        device.load(tiny / "target", tiny / drafter, 2, **{"loop": "asynchronous"} | options)


@given(st.data(), st.integers(1, 6), st.integers(1, 5), st.lists(st.integers(1, 40), min_size=1, max_size=3))
def test_rounds_are_sent_ahead_where_the_budget_needs_them_and_never_see_too_little(data, k, chunk, budgets):
    """Whatever rounds emit: every sequence ends, none is sent for nothing, and masks reach beyond every row."""
    lengths, left, flying, most = [7] * len(budgets), list(budgets), [], 0

    def read(standing, rounds):
        nonlocal most
        most = max(most, len(flying))
        for _ in range(rounds):
            standing = standing.behind(flying.pop(0), [False] * len(budgets))
        return standing

    for reach in rounds_ahead(Standing((7,) * len(budgets), tuple(budgets)), k, chunk, read):
        assert any(left), "a round that nobody needs"
        assert reach >= max(row for row, more in zip(lengths, left, strict=True) if more) + 1
        assert reach <= 7 + max(budgets) + k
        emitted = [data.draw(st.integers(1, min(k + 1, more))) if more else 0 for more in left]
        lengths = [row + more for row, more in zip(lengths, emitted, strict=True)]
        left = [more - gone for more, gone in zip(left, emitted, strict=True)]
        flying.append(emitted)
    assert not any(left) and not flying and most <= 2 * chunk


@pytest.fixture(scope="module")
def compiled(tiny, tmp_path_factory):
    """Both loops of a pair of two layers each on the engine xla."""
    pytest.importorskip("jax", reason="the xla engine needs jax: pip install 'parity-harness[xla]'")
    pair = cut_pair(tiny, tmp_path_factory.mktemp("cut"))
    return lambda k, precision: [
        device.load(pair["target"], pair["drafter"], k, precision, "xla", loop=loop, chunk=1, max_positions=64)
        for loop in LOOPS
    ]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"] if WHOLE else ["bfloat16"])
def test_a_compiled_round_is_one_program_and_gives_the_bits_of_many(precision, compiled):
    waiting, ahead = compiled(3, precision)
    assert ahead.generate(PROMPT[:40], 8) == waiting.generate(PROMPT[:40], 8)
    assert_same(waiting, ahead.pipeline)
    before = ahead.engine.programs.used.keys()
    ahead.generate(PROMPT[:40], 8)
    assert ahead.engine.programs.used.keys() == before, "a sequence compiled something new"
    rounds = {one.kernel for one in ahead.engine.programs.used.values()} - {"window", "rolled_back"}
    of_prefill = {"make_step", "embed", "target_layer", "choose", "fuse", "midlayer", "plain_layer"}
    assert rounds - of_prefill == {"speculated"}


def test_whoever_waits_for_a_compiled_device_waits_for_every_cache(compiled):
    waiting, ahead = compiled(3, "bfloat16")
    lanes = Batch(waiting, 2)
    for one, held in ((waiting, [waiting]), (ahead, [ahead.pipeline]), (lanes, lanes.lanes)):
        waited, engine = [], waiting.engine if one is lanes else held[0].engine
        clean, engine.wait = engine.wait, waited.extend
        one.synchronize()
        engine.wait = clean
        one.synchronize()
        every = [
            owned(one)
            for lane in held
            for model in (lane.target, lane.drafter)
            for pair in model.caches
            for one in pair
        ]
        assert len(waited) == len(every) and all(
            mine.held is array.held for mine, array in zip(waited, every, strict=True)
        )
        assert all(array.held.is_ready() for array in every)


@by_night
@pytest.mark.parametrize("k", range(1, 11))
@pytest.mark.parametrize("family", ["drafter", "eagle3"])
@pytest.mark.parametrize("engine", ["numpy", "xla"])
def test_all_prompts_and_every_k_alone_and_five_together(k, family, engine, tiny, tmp_path):
    """Five together beside five lanes of the synchronous loop, in passes as wide as the caches: another width, and on
    xla another number of rows, may be another order of sums, which bfloat16 may show. A lane that is over
    leaves the synchronous programs and stays in the round's: on xla the texts of five are compared, not their drafts.

    P-EAGLE's config has room for 8 drafts: for more it is given that, as a bench does.
    """
    if engine == "xla":
        pytest.importorskip("jax")
    pair, _ = with_room((tiny / "target", tiny / family), 0, k, tmp_path)
    load = partial(device.load, *pair, k, "bfloat16", engine, chunk=2, max_positions=320)
    waiting, ahead = (load(loop=loop) for loop in LOOPS)
    files = (tiny / "prompts" / f"{kind}.jsonl" for kind in ("chat", "raw"))
    prompts = [ids for file in files for _, ids in read_prompts(file, *pair)]
    for ids in prompts:
        assert ahead.generate(ids, 48) == waiting.generate(ids, 48)
        assert_same(waiting, ahead.pipeline)
    lanes = load(lanes=5)
    for pipeline in (ahead.pipeline, *lanes.lanes):
        pipeline.target.span_bucket = pipeline.drafter.span_bucket = 320
    for first in range(0, len(prompts), 5):
        together = {str(number): ids for number, ids in enumerate(prompts[first : first + 5])}
        runs = ahead.generate_together(list(together.values()), [48] * len(together))
        right = ByVerbs(lanes, drafts=True)(together, 48).sequences.values()
        assert [run.tokens for run in runs] == [one.tokens for one in right]
        if engine == "numpy":
            assert [list(run.acceptance_lengths) for run in runs] == [one.emitted for one in right]
            for lane, own in zip(lanes.lanes, ahead.lanes, strict=False):
                assert_same(lane, own)
