"""What opens a golden for judging; whatever judges takes nothing else; views of a dump read as the dump does."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from parity import api, builders, calibrate, compare, engines, faults, producers, reduce
from parity.compare.basis import basis
from parity.compare.between import compare_devices
from parity.compare.rebased import RebasedGolden
from parity.diagnose.counterfactual import CounterfactualGolden
from parity.diagnose.failing_run import FailingRun, failing_run, find_failing_run
from parity.diagnose.prompt_evidence import PromptEvidence
from parity.diagnose.ranks import RankView, first_failing_rank
from parity.diagnose.whole import DiagnosisRequest
from parity.errors import UsageError
from parity.gates.context import GateContext
from parity.golden.choice import Wanted, open_for_judging
from parity.golden.store import Dump
from parity.golden.trust import trusted
from parity.golden.views import DumpView, GoldenSlice, JoinedGoldens, JoinedSlices, PromptSlice, TrustedGolden
from parity.nightly.cell import judge_cell
from parity.nightly.judge import night_of
from parity.reports.page.night import run_view
from tests.golden.edits import rewrite

JUDGES = (
    *(api.compare_dumps, api.gate_device, api.diagnose_device, api.reduce_failure, api.run_device, api.worst_slices),
    *(compare.compare, compare_devices, basis, RebasedGolden.__init__, CounterfactualGolden.__init__),
    *(GateContext, DiagnosisRequest, FailingRun, PromptEvidence, failing_run, find_failing_run, first_failing_rank),
    *(judge_cell, night_of, run_view),
    *(engines.matrix, faults.FaultRunRequest, reduce.Reducer, calibrate.CalibrationRequest),
    *(builders.builder, builders.device, builders.gate_context, producers.counterfactuals),
)


@pytest.fixture
def folder(shallow_golden, tmp_path) -> Path:
    """A copy of the small golden to spoil."""
    return Path(shutil.copytree(shallow_golden.folder, tmp_path / "golden"))


@pytest.mark.parametrize("judge", JUDGES, ids=lambda judge: f"{judge.__module__}.{judge.__qualname__}")
def test_whatever_judges_takes_a_golden_opened_for_judging(judge):
    assert judge.__annotations__["golden"] == "TrustedGolden"


def test_only_what_was_checked_is_trusted(folder):
    looked = Dump(folder)
    assert not isinstance(looked, TrustedGolden) and not isinstance(PromptSlice(looked, 0, 1), TrustedGolden)
    opened = trusted(looked)
    assert isinstance(opened, TrustedGolden) and opened.unknown == ()
    assert isinstance(open_for_judging(Wanted(folder), folder.parent), TrustedGolden)
    assert isinstance(GoldenSlice(opened, 0, 1), TrustedGolden)
    assert isinstance(JoinedGoldens([GoldenSlice(opened, 0, 1)]), TrustedGolden)


SPOILT = {
    "is stale: the target's weights": lambda raw: raw["model"]["target"].update(weights_digest="0" * 64),
    "is stale: the source of parity.references.rope": lambda raw: raw["producer"]["sources"].update(
        {"parity.references.rope": "0" * 64}
    ),
    "does not say which source it was made of": lambda raw: raw["producer"].update(modules=[], sources={}, parts=[]),
}


@pytest.mark.parametrize("why", SPOILT)
def test_what_must_not_judge_can_be_looked_at(why, folder):
    rewrite(folder, SPOILT[why])
    assert Dump(folder).contents("float32", 0, 0, "target.logits") is not None
    with pytest.raises(UsageError, match=why):
        trusted(Dump(folder))


def test_a_run_judges_nobody(shallow_golden, tmp_path):
    run = api.run_device(shallow_golden, stages=("tokens",), out=tmp_path / "run", free=False)
    with pytest.raises(UsageError, match="is a device's run, not a golden"):
        trusted(run)


def test_what_cannot_be_checked_is_noted_once(folder, tmp_path, noted):
    rewrite(folder, lambda raw: raw["model"]["target"].update(path="/lost/target"))
    opened = trusted(Dump(folder))
    assert len(opened.unknown) == 1 and "/lost/target is no checkpoint here" in opened.unknown[0]
    with pytest.raises(UsageError, match=r"no config\.json"):
        builders.builder("numpy", opened)
    assert [record.getMessage() for record in noted.records] == list(opened.unknown)


def test_a_tensor_is_checked_when_it_is_read(folder):
    shard = folder / "p001.bfloat16.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x7f")
    opened = trusted(Dump(folder))
    assert opened.contents("float32", 1, 0, "target.logits") is not None
    with pytest.raises(UsageError, match="does not match the manifest's digest"):
        [opened.stored(*place) for place in opened.rows]


def views(golden: Dump) -> dict[str, tuple[DumpView, int]]:
    """Views by name, each with its number of the golden's prompt 1."""
    opened = trusted(golden)
    part = GoldenSlice(opened, 1, 99)
    tensors = {(round_, stage): part.contents("float32", 0, round_, stage) for _, _, round_, stage in part.rows}
    return {
        "opened": (opened, 1),
        "slice": (part, 0),
        "joined": (JoinedSlices([GoldenSlice(opened, 0, 99), part]), 1),
        "rebased": (RebasedGolden(opened, golden, [1]), 1),
        "counterfactual": (CounterfactualGolden(part, tensors, "chained"), 0),
        "rank": (RankView(golden, 0), 1),
    }


@pytest.mark.parametrize("name", ["opened", "slice", "joined", "rebased", "counterfactual", "rank"])
def test_a_view_reads_as_the_dump_does(name, shallow_golden):
    view, number = views(shallow_golden)[name]
    variants = ("float32",) if name == "counterfactual" else ("float32", "bfloat16", "bfloat16.local")
    places = [place for place in shallow_golden.rows if place[1] == 1 and place[0] in variants]
    assert len(places) > 100 and view.declared == shallow_golden.declared and view.folder == shallow_golden.folder
    for variant, prompt, round_, stage in places:
        whole, seen = (
            dump.contents(variant, at, round_, stage) for dump, at in ((shallow_golden, prompt), (view, number))
        )
        assert seen.dtype == whole.dtype and np.array_equal(seen, whole)
        assert view.rows[variant, number, round_, stage].full_shape == whole.shape
    assert view.stored("float32", number, 99, "target.logits") is None
    assert view.shards("float32", number, 99, "target.logits") == []
