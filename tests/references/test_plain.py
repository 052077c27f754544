"""The plain target in the loop: goldens that judge a device, and confirm those of Hugging Face's target."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from parity.corroborate import triangulate
from parity.golden.store import Dump
from parity.policy import read_policy
from parity.producers import how_made
from parity.references import gpt_oss
from parity.references.capture import ignore
from parity.references.hf_target import HFTarget
from parity.references.plain import PlainTarget, Request, dump_golden
from parity.references.rerun import rerun
from tests.sample import WHOLE, cut

IDS = torch.arange(60) * 7 % 1200


@pytest.fixture(scope="module")
def golden(tiny, tmp_path_factory) -> Dump:
    """The first prompt of the small case."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "one.jsonl").write_text(cut((tiny / "prompts/chat.jsonl").read_text().splitlines()[0]))
    pair = dict(target=tiny / "target", drafter=tiny / "drafter", k=4, max_new_tokens=12, stages=())
    return Dump(dump_golden(Request(prompts=folder / "one.jsonl", out=folder / "golden", **pair)))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_judges_the_numpy_device(precision, golden, parity):
    ended = parity("diff", "--golden", golden.folder, "--device", "numpy", "--precision", precision)
    assert ended.code == 0 and "chained verdict: pass" in ended.last, ended.out + ended.err


def test_it_fails_a_device_with_a_fault_of_the_target(golden, parity):
    fault = "parity.device.faults:attn_sinks_missing"
    mode = () if WHOLE else ("--mode", "local")
    ended = parity("diff", "--golden", golden.folder, "--device", fault, "--precision", "float32", *mode)
    assert ended.code == 1 and "first divergent: target.layers.0.attn_out" in ended.last, ended.out + ended.err


def test_the_two_targets_are_two_opinions_and_what_they_share_is_one(golden, small_golden):
    found = triangulate([small_golden, golden], read_policy(None, "float32"))
    (pair,) = found.pairs
    assert found.exit_code == 0 and found.first is None
    confirmed = {name for name, standing in found.stages.items() if standing.verdict == "corroborated"}
    assert confirmed | set(pair.shared) == set(golden.manifest.stages) and not confirmed & set(pair.shared)
    assert {"target.embed", "target.layers.7.experts", "target.logits", "verify.logits", "kv.target.0.k"} <= confirmed
    loops = {"target.tokens", "verify.tokens", "kv.target.length", "accept.length", "drafter.taps"}
    assert loops | {name for name in pair.shared if name.startswith("drafter.")} <= set(pair.shared)
    assert all("parity.references." in why for why in pair.shared.values())


def test_its_target_is_one_opinion_with_itself(golden):
    target = golden.manifest.producer.of("target.logits")
    assert target.modules == (gpt_oss.__name__,) and set(target.sources) == set(target.modules)


def test_it_is_dumped_again_by_the_same_reference(golden, small_golden):
    assert how_made(golden)["reference"] == "plain" and how_made(small_golden)["reference"] == "own"


def test_it_runs_again_with_a_runs_experts(golden, tmp_path):
    class Same(Dump):
        """A run whose experts are the golden's."""

        def __init__(self):
            vars(self).update(vars(golden))
            case = golden.manifest.case.model_copy(update={"mode": "chained"})
            self.manifest = golden.manifest.model_copy(update={"case": case})

    again = Dump(rerun(golden, Same(), [0], tmp_path / "again"))
    places = [place for place in golden.rows if place[0] in ("float32", "bfloat16")]
    assert set(again.rows) == set(places)
    assert not [one for one in places if not np.array_equal(golden.contents(*one), again.contents(*one))]


def test_constants_are_those_that_hugging_face_reads(golden, small_golden):
    own, theirs = (one.manifest.model.target.constants for one in (golden, small_golden))
    assert own == theirs and own["swiglu_alpha"] == 1.702 and own["eos_token_id"] == (1265, 1266)


def test_a_cropped_cache_forgets_the_rejected_rows(tiny):
    target = PlainTarget(tiny / "target", torch.float32)
    target.forward(IDS[:40])
    put_back = target.keep()
    first = target.forward(IDS[40:45])
    target.crop(40)
    assert torch.equal(target.forward(IDS[40:45]), first)
    put_back()
    assert len(target.rows(0)[0]) == 40 and torch.equal(target.forward(IDS[40:45]), first)


def test_streams_are_those_that_hugging_face_hands_over(tiny):
    plain, theirs = PlainTarget(tiny / "target", torch.float32), HFTarget(tiny / "target", torch.float32)
    for target in (plain, theirs):
        target.forward(IDS)
    assert plain.streams.keys() == theirs.streams.keys()
    torch.testing.assert_close(plain.taps((2, 4, 8)), theirs.taps((2, 4, 8)), rtol=1e-4, atol=1e-4)


def test_another_rounding_is_the_same_maths_in_another_order(tiny):
    logits = {}
    for dtype in (torch.float32, torch.bfloat16):
        target = PlainTarget(tiny / "target", dtype)
        roundings = target.roundings(torch.nn.Linear(1, 1))
        for number in (0, 1, 0):
            roundings.choose(number)
            target.reset(ignore)
            logits.setdefault((dtype, number), []).append(target.forward(IDS).float())
    for dtype in (torch.float32, torch.bfloat16):
        (first, again), (other,) = logits[dtype, 0], logits[dtype, 1]
        assert torch.equal(first, again) and not torch.equal(first, other)
    torch.testing.assert_close(logits[torch.float32, 1][0], logits[torch.float32, 0][0], rtol=1e-4, atol=1e-4)
