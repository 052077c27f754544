"""The official EAGLE-3's recording as a witness: it confirms what it drafted, nothing that this project's loop did."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from parity.corroborate import triangulate
from parity.golden.producer import ProducerPart
from parity.golden.store import Dump
from parity.golden.verify import write_prompts
from parity.policy import read_policy
from parity.references import dump
from parity.references.hypotheses import taps

RECORDED = Path(__file__).parents[2] / "fixtures" / "eagle"
LOOPS = {"drafter.taps", "kv.drafter.length", "accept.length", "accept.emitted"}


@pytest.fixture
def dumped(remake_small_golden, tiny, tmp_path):
    """Dump the recording's case with our own EAGLE-3."""
    official = Dump(RECORDED)
    case, prompts = official.manifest.case, write_prompts(official, tmp_path / "prompts.jsonl")
    asked = dict(drafter=tiny / "eagle3", prompts=prompts, k=case.k, max_new_tokens=case.max_new_tokens)
    return lambda: remake_small_golden(tmp_path / "golden", **asked)


def held(ours: Dump):
    return triangulate([ours, Dump(RECORDED)], read_policy(None, "float32"))


def test_the_official_drafter_confirms_ours(dumped):
    found = held(dumped())
    assert (found.verdict, found.exit_code, found.first) == ("corroborated", 0, None)
    confirmed = {name for name, standing in found.stages.items() if standing.verdict == "corroborated"}
    assert confirmed == set(Dump(RECORDED).manifest.stages) - LOOPS
    assert {"drafter.draft_tokens", "drafter.logits", "drafter.positions", "kv.drafter.0.k"} <= confirmed
    (pair,) = found.pairs
    assert set(pair.shared) == LOOPS and "parity.references." in pair.shared["drafter.taps"]


def test_taps_off_by_one_are_a_dispute(dumped, monkeypatch):
    made = dump.load_loop
    with ExitStack() as stack:

        def late(*pair):
            stack.enter_context(taps.shifted(loop := made(*pair), 1))
            return loop

        monkeypatch.setattr(dump, "load_loop", late)
        found = held(dumped())
    assert found.verdict == "disputed" and found.first.stage == "drafter.taps"
    assert found.stages["drafter.fc_out"].verdict == "disputed"


def test_a_part_is_made_of_its_producers_modules():
    producer = Dump(RECORDED).manifest.producer
    with pytest.raises(ValueError, match="some of the producer's"):
        type(producer)(
            **producer.model_dump() | {"parts": [ProducerPart(stages=("drafter.logits",), modules=("elsewhere",))]}
        )
    assert "parity.references.loop" in producer.of("accept.length").modules
    assert not any(
        name.startswith("parity.references.") for name in producer.of("drafter.logits").modules if "eagle" not in name
    )
