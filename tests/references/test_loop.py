"""The speculative loop of the references: lossless, and counting only what was emitted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from parity.errors import UsageError
from parity.references.capture import ignore
from parity.references.dump import Request, dump_golden
from parity.references.hf_target import HFTarget
from parity.references.parallel import ParallelLoop
from parity.references.peagle import PEagle
from parity.references.prompts import read_prompts
from parity.stages import declared
from parity.trace import Trace


@pytest.fixture(scope="module")
def pair(tiny):
    return HFTarget(tiny / "target", torch.float32), PEagle.load(tiny / "drafter")


@pytest.fixture(scope="module")
def prompts(tiny):
    return read_prompts(tiny / "prompts/chat.jsonl", tiny / "target", 1280)


def run(pair, ids, k=4, budget=24):
    target, drafter = pair
    names = declared(target.config.num_hidden_layers, drafter.config.num_layers)
    return ParallelLoop(target, drafter, k).run(ids, budget, Trace(names))


@pytest.mark.parametrize("k", [1, 7])
def test_speculation_emits_what_plain_greedy_decoding_emits(k, pair, prompts):
    _, ids = prompts[0]
    pair[0].reset(ignore)
    plain = pair[0].model.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)[0, len(ids) :]
    assert list(run(pair, ids, k).emitted) == plain.tolist()


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_the_budget_cuts_exactly_and_only_emitted_tokens_count(budget, pair, prompts):
    result = run(pair, prompts[0][1], budget=budget)
    assert len(result.emitted) == budget == 1 + sum(result.acceptance_length)
    assert all(0 <= d <= n for d, n in zip(result.accepted_drafts, result.acceptance_length, strict=True))


@pytest.mark.parametrize("k", [0, 9])
def test_k_outside_what_the_drafter_was_made_for_is_refused(k, pair):
    with pytest.raises(UsageError, match="1 to 8"):
        ParallelLoop(*pair, k)


@pytest.mark.parametrize(("length", "budget"), [(1, 8), (10, 0), (500, 20)])
def test_what_does_not_fit_is_refused_before_any_work(length, budget, pair):
    with pytest.raises(UsageError):
        run(pair, [5] * length, budget=budget)


def test_chat_prompts_cross_the_window_and_the_original_context(prompts, pair):
    config = pair[0].config
    original = config.rope_parameters["original_max_position_embeddings"]
    assert len(prompts) >= 12
    assert all(len(ids) > max(config.sliding_window, original) for _, ids in prompts)


def test_a_checkpoint_that_changes_during_the_dump_is_refused(tiny, tmp_path):
    drafter = Path(shutil.copytree(tiny / "drafter", tmp_path / "drafter"))
    prompts = tmp_path / "one.jsonl"
    prompts.write_text('{"id": "one", "ids": [5, 6, 7]}')

    def meddle(done, total, name):
        if done == total:
            (drafter / "config.json").write_text((drafter / "config.json").read_text() + "\n")

    options = dict(k=2, max_new_tokens=2, stages=(), out=tmp_path / "golden", progress=meddle)
    with pytest.raises(UsageError, match="changed while"):
        dump_golden(Request(target=tiny / "target", drafter=drafter, prompts=prompts, **options))
    assert not (tmp_path / "golden").exists()
