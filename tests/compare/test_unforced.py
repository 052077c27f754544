"""A run that continues with its own experts: nothing is judged by its own error, nothing passes without evidence."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest

from parity.compare import compare
from parity.compare.between import DeviceDifference, compare_devices
from parity.errors import Inconclusive
from parity.policy import read_policy
from parity.trace import forced_templates
from tests.compare.test_own_scores import FEW, ROWS, close, lift, other
from tests.meta.dumps import Pair, clean, write
from tests.meta.plants import EXPERTS, FFN, LOGITS, OUT, each

POLICY = read_policy(None, "bfloat16")
TEMPLATE = "target.layers.{l}.experts"
RNG = np.random.default_rng(5)


def flipped() -> Pair:
    """Experts within noise, as the device's own scores have them, in the first rows of a prompt."""
    pair = clean(FEW)
    columns = close(pair, EXPERTS, gap=1)
    lift(pair, EXPERTS, columns)
    other(pair, EXPERTS, columns)
    return pair


def garbage(pair: Pair) -> Pair:
    """Numbers of no meaning behind the flips, and the tokens that they choose."""
    for stage in (FFN, OUT, "target.pre_head_hidden", LOGITS):
        tensors, place = next(each(pair.run, stage))
        tensors[place][:ROWS] = RNG.normal(size=tensors[place][:ROWS].shape) * 5
    logits, place = next(each(pair.run, LOGITS))
    logits[0, "target.tokens"][:ROWS] = logits[place][:ROWS].astype(np.float32).argmax(axis=1)
    return pair


@pytest.fixture
def dumps(tmp_path):
    def opened(pair: Pair, forced=(), **changes):
        golden, run = write(pair, tmp_path / str(RNG.integers(10**9)))
        case = run.manifest.case.model_copy(update={"forced": tuple(forced), **changes})
        run.manifest = run.manifest.model_copy(update={"case": case})
        return golden, run

    return opened


def same(golden, run, prompts, floor=True):
    """A reference to which the experts make no difference, as in these dumps."""
    return golden


def test_garbage_behind_flips_is_never_a_pass(dumps):
    golden, run = dumps(garbage(flipped()))
    alone, again = compare(golden, run, POLICY), compare(golden, run, POLICY, rerun=same)
    assert alone.exit_code == 3 and "the reference was not run again" in str(alone.own_experts)
    assert again.exit_code == 1 and again.first.stage == FFN


def test_an_honest_run_passes_against_the_reference_with_its_experts_and_not_without(dumps):
    golden, run = dumps(flipped())
    alone, again = compare(golden, run, POLICY), compare(golden, run, POLICY, rerun=same)
    assert again.verdict == "pass" and not any(stage.rows_apart for stage in again.stages)
    assert alone.verdict == "inconclusive"
    apart = {stage.stage: stage for stage in alone.stages if stage.rows_apart}
    assert FFN in apart and {stage.verdict for stage in apart.values()} == {"inconclusive"}
    assert EXPERTS not in apart and "target.embed" not in apart


def test_the_share_is_told_and_bounded(dumps):
    pair = flipped()
    told = compare(*dumps(pair), POLICY, rerun=same).own_experts
    assert (told.positions, told.of, told.differing) == (3, 50, 3) and "3 of 50 positions (6.0%)" in str(told)
    for tensors, place in each(pair.run, EXPERTS):
        router = (place[0], "target.layers.0.router_logits")
        for side in (*pair.golden.values(), pair.run):
            next(one for one in side if router in one)[router][:] = np.where(np.arange(8) < 2, 1.0, 0.999)
        tensors[place][:] = [6, 7]  # ties, every one of them, and twenty times as many as the floor's
    many = compare(*dumps(pair), POLICY, ("ffn_out", "experts"), rerun=same)
    assert many.verdict == "inconclusive" and many.own_experts.differing > many.own_experts.explained


def test_why_the_reference_was_not_run_again_is_said(dumps):
    def absent(golden, run, prompts, floor=True):
        raise Inconclusive("torch is not here")

    found = compare(*dumps(flipped()), POLICY, rerun=absent)
    assert found.exit_code == 3 and "torch is not here" in str(found.own_experts)


@pytest.mark.parametrize(("pair", "globs"), [(clean, ()), (lambda size: flipped(), ("embed", "attn_in"))])
def test_the_reference_is_run_again_only_where_rows_lie_behind_a_flip(pair, globs, dumps):
    def never(golden, run, prompts, floor=True):
        raise AssertionError("nothing asks for it")

    assert compare(*dumps(pair(FEW)), POLICY, globs, rerun=never).own_experts is None


def subsets(templates):
    return chain.from_iterable(combinations(templates, count) for count in range(len(templates) + 1))


@pytest.mark.parametrize("mode", ["chained", "local"])
def test_no_edit_of_what_was_forced_lets_a_wrong_run_pass(mode, dumps):
    """Every subset of what a chained run forces."""
    golden, run = dumps(garbage(flipped()), mode=mode)
    for forced in subsets(forced_templates("chained")):
        run.manifest = run.manifest.model_copy(update={"case": run.manifest.case.model_copy(update={"forced": forced})})
        for rerun in (None, same):
            found = compare(golden, run, POLICY, (FFN,), rerun=rerun)
            assert found.exit_code == (3 if rerun is None and TEMPLATE not in forced and mode == "chained" else 1), (
                forced
            )


def test_an_unforced_run_that_shows_no_experts_is_judged_strictly(dumps):
    pair = garbage(flipped())
    for tensors, place in list(each(pair.run, EXPERTS)):
        del tensors[place]
    pair.run_stages.remove(EXPERTS)
    assert compare(*dumps(pair), POLICY).first.stage == EXPERTS
    assert compare(*dumps(pair), POLICY, ("ffn_out",)).exit_code == 1


@pytest.mark.parametrize("turned", [False, True])
def test_two_devices_of_which_one_went_its_own_way_are_not_judged_where_it_did(turned, dumps):
    (golden, mine), (_, theirs) = dumps(flipped()), dumps(clean(FEW), [TEMPLATE])
    pair = (theirs, mine) if turned else (mine, theirs)
    found = compare_devices(golden, DeviceDifference(golden, *pair), POLICY, ("ffn_out", "out"))
    assert found.exit_code == 3 and "compare each with the golden" in str(found.own_experts)
