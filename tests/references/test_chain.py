"""The speculative loop with the tiny EAGLE-3 drafter: lossless, forced in every pass, behind the seam, in a golden."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from parity.references.capture import ignore
from parity.references.chain import ChainLoop
from parity.references.drafting import load_loop
from parity.references.prompts import read_prompts
from parity.references.seam import Reference
from parity.rounds import generate, untapped
from parity.stages import declared
from parity.trace import ForcingTrace, Trace

K, BUDGET = 3, 12


@pytest.fixture(scope="module")
def tiny(three_layers):
    return three_layers


@pytest.fixture(scope="module")
def loop(tiny):
    return load_loop(tiny / "target", tiny / "eagle3", torch.float32, K)


@pytest.fixture(scope="module")
def prompt(tiny):
    return read_prompts(tiny / "prompts/chat.jsonl", tiny / "target", 1280)[0][1]


@pytest.fixture(scope="module")
def traced(loop, prompt):
    trace = Trace(declared(8, 1))
    return loop.run(prompt, BUDGET, trace), trace.tensors


def test_the_chain_emits_what_plain_greedy_decoding_emits(loop, prompt, traced):
    result, _ = traced
    assert isinstance(loop, ChainLoop)
    loop.target.reset(ignore)
    plain = loop.target.model.generate(torch.tensor([prompt]), max_new_tokens=BUDGET, do_sample=False)
    assert list(result.emitted) == plain[0, len(prompt) :].tolist()


def test_every_declared_stage_comes_once_a_round_with_the_rows_of_the_chain(traced, prompt):
    result, tensors = traced
    rounds, length = len(result.acceptance_length), len(prompt) - 1
    committed = [1, *result.acceptance_length]
    names = {
        name: named for name, named in declared(8, 1).items() if named.stage.side == "drafter" or "kv.drafter" in name
    }
    for round_ in range(1, rounds + 1):
        assert all((round_, name) in tensors for name in names)
        C = committed[round_ - 1]
        assert tensors[round_, "drafter.taps"].shape[0] == C
        assert {tensors[round_, f"drafter.{part}"].shape[0] for part in ("input_ids", "fc_out", "layers.0.out")} == {
            C + K - 1
        }
        assert tensors[round_, "drafter.positions"].tolist() == list(range(length, length + C + K - 1))
        assert tensors[round_, "drafter.draft_tokens"].shape == (K,)
        length += C
        assert tensors[round_, "kv.drafter.length"].tolist() == [length] == [len(tensors[round_, "kv.drafter.0.k"])]


def test_a_local_run_starts_every_pass_of_the_chain_from_the_golden(loop, prompt, traced):
    _, tensors = traced
    bent = dict(tensors)
    place = (1, "drafter.fc_out")
    bent[place] = tensors[place] + np.array([[0.0]] + [[1.0]] * (K - 1), np.float32)  # the chain rows only
    trace = ForcingTrace(declared(8, 1), lambda round_, stage: bent.get((round_, stage)), declared(8, 1))
    loop.run(prompt, BUDGET, trace)
    same = trace.tensors[1, "drafter.layers.0.attn_out"] == tensors[1, "drafter.layers.0.attn_out"]
    assert same[0].all() and not same[1].all() and not same[2].all()
    assert np.array_equal(trace.tensors[1, "drafter.logits"], tensors[1, "drafter.logits"])


def test_a_golden_of_the_pair_says_its_drafters_family(chain_golden):
    model = chain_golden.manifest.model
    assert model.num_drafter_layers == 1 and "eagle3" in chain_golden.manifest.producer.name
    assert {row[0] for row in chain_golden.rows} == {"float32", "bfloat16", "bfloat16.local"}
    assert model.family == "eagle-3"


def test_behind_the_seam_the_loop_emits_the_same_and_a_round_may_begin_anew(loop, prompt, traced):
    device = Reference(loop, "float32")
    generation = generate(device, prompt, BUDGET)
    assert (generation.emitted, generation.accepted_drafts) == (traced[0].emitted, traced[0].accepted_drafts)
    device.prefill(prompt, BUDGET, untapped)
    first = device.draft(untapped)

    def failing(stage, value):
        raise RuntimeError(stage)

    with pytest.raises(RuntimeError):
        device.draft(failing)
    assert np.array_equal(device.draft(untapped), first)
