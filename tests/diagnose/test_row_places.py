"""Rows in other places than their tokens': each such defect is named when the references themselves have it."""

from __future__ import annotations

import json

import pytest

from parity.diagnose import diagnose
from parity.diagnose.failing_run import failing_run
from parity.diagnose.trials import PromptTrials
from parity.golden.producer import Producer
from parity.golden.store import Dump
from parity.golden.writer import DumpWriter
from parity.policy import read_policy
from parity.producers import counterfactuals
from parity.references.hypotheses import HYPOTHESES, rolled_back, stale, starting, surplus
from parity.references.hypotheses.stale import ALL, AS_EMITTED
from parity.references.hypotheses.surplus import EMPTY, FIRST, LAST, RIGHT, SLOTS
from parity.references.prompts import read_prompts
from parity.trace import ForcingTrace, forced_names
from tests.sample import WHOLE, by_night

RELATED = [
    one for family in (rolled_back.rollback, stale.stale, surplus.seeds, starting.starts) for one in family.hypotheses
]
"""What else leaves rows in other places; by night the whole catalogue is searched."""
BY_ID = {hypothesis.id: hypothesis for hypothesis in HYPOTHESES}
PRECISION = "bfloat16"
ELSEWHERE = Producer(name="elsewhere", versions={}, modules=("elsewhere",), source_digest="", threads=1, platform="")


class Bench:
    """A golden of one prompt, whose rounds accept 0 and 1 of 4 drafts, and runs of the references under hypotheses."""

    def __init__(self, golden: Dump):
        self.golden, self.policy = golden, read_policy(None, PRECISION)
        self.make, every = counterfactuals(golden, 1)
        self.hypotheses = every if WHOLE else RELATED
        self.made = {}

    def reference(self, precision: str):
        """One for each precision."""
        if precision not in self.made:
            self.made[precision] = self.make(precision)
        return self.made[precision]

    def run(self, assumed, mode: str, folder) -> Dump:
        """A device that has these defects and no other."""
        golden, case = self.golden, self.golden.manifest.case
        (prompt,) = case.prompts
        forced = forced_names(mode, golden.declared)
        trace = ForcingTrace(golden.declared, lambda *place: golden.contents("float32", 0, *place), forced)
        self.reference(PRECISION).run(
            assumed, prompt.ids, case.max_new_tokens, trace, len(prompt.generated.accepted_drafts)
        )
        with DumpWriter(folder) as writer:
            writer.add(0, PRECISION, golden.declared.values(), trace.tensors)
            templates = {golden.declared[name].stage.template: None for name in forced}
            prompts = (prompt.model_copy(update={"generation": None}),)
            told = dict(precision=PRECISION, mode=mode, forced=tuple(templates), prompts=prompts)
            writer.finish(
                kind="run",
                stages=golden.manifest.stages,
                created="",
                producer=ELSEWHERE,
                model=golden.manifest.model,
                case=case.model_copy(update=told),
            )
        return Dump(folder)

    def diagnosed(self, assumed, mode: str, folder):
        """What a diagnosis says; None where nothing fails."""
        red = failing_run(self.golden, self.run(assumed, mode, folder), self.policy)
        if red is None:
            return None
        trials = PromptTrials(red.golden, red.run, red.number, self.policy, self.reference)
        return diagnose(trials, self.hypotheses, red.first, red.residuals())


@pytest.fixture(scope="module")
def bench(tiny, remake_small_golden, tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    ids = read_prompts(tiny / "prompts/chat.jsonl", tiny / "target", 1280)[1][1][3:43]
    (folder / "prompts.jsonl").write_text(json.dumps({"id": "places", "ids": ids}))
    return Bench(remake_small_golden(folder / "golden", prompts=folder / "prompts.jsonl", max_new_tokens=6))


SAMPLE = [("commit-seed-row", FIRST, "local"), ("verify-start", 1, "local")]
"""What shows in the cache's shape, and what in the rotation."""
OTHERS = [
    ("rollback-behind-stale", ALL, "local"),
    ("commit-seed-row-drafter", (FIRST, RIGHT), "local"),
    ("rollback-too-near", "target", "local"),
    ("commit-seed-row", LAST, "local"),
    ("commit-seed-row", EMPTY, "chained"),
    ("commit-seed-row-late", FIRST, "chained"),
    ("commit-seed-row-drafter", (EMPTY, SLOTS), "chained"),
    ("commit-seed-row-late-drafter", (FIRST, SLOTS), "local"),
    ("commit-seed-row-late-drafter", (FIRST, RIGHT), "chained"),
    ("input-prefill-too-long", SLOTS, "local"),
    ("tap-first-token", None, "local"),
    ("verify-start", 2, "chained"),
    ("verify-start", -1, "local"),
    ("verify-slot", 1, "local"),
    ("verify-position", 1, "local"),
    ("rollback-behind-stale-drafter", AS_EMITTED, "chained"),
    ("rollback-behind-stale-drafter", ALL, "chained"),
    ("rollback-too-near", "drafter", "local"),
    ("rollback-too-near", "drafter once", "local"),
]


@by_night
@pytest.mark.parametrize(("name", "value", "mode"), [*SAMPLE, *OTHERS] if WHOLE else SAMPLE[:1])
def test_it_is_named_alone_with_its_value(name, value, mode, bench, tmp_path):
    found = bench.diagnosed([(BY_ID[name], value)], mode, tmp_path / "run")
    assert [(cause.hypothesis, cause.value) for cause in found.causes] == [(name, value)], found
    assert found.unexplained is None and found.causes[0].whole


@by_night
@pytest.mark.parametrize(("side", "given", "mode"), [("", ALL, "local"), ("-drafter", AS_EMITTED, "chained")])
def test_a_mask_that_only_later_rounds_show_is_named_on_top(side, given, mode, bench, tmp_path):
    """Both masks leave the same rows in the cache in the first round: the stale rows are named, then what they hide."""
    base = "rollback-behind-stale"
    found = bench.diagnosed([(BY_ID[f"{base}-by-position{side}"], given)], mode, tmp_path / "run")
    named = [cause.hypothesis for cause in found.causes]
    assert named[-1] == f"{base}-by-position{side}" and named[:-1] in ([], [f"{base}{side}"]), found
    assert found.unexplained is None
