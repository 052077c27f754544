"""What a golden takes is said before it is made, and a limit of its bytes is never exceeded."""

from __future__ import annotations

import numpy as np
import pytest

from parity.errors import UsageError
from parity.golden.writer import DumpWriter
from parity.plan import golden_plan


@pytest.fixture
def plan(shallow_golden, tiny):
    case = shallow_golden.manifest.case
    pair, lengths = (tiny / "target", tiny / "drafter"), [len(prompt.ids) for prompt in case.prompts]
    return golden_plan(pair, "p-eagle", lengths, case.k, case.max_new_tokens)


def test_a_golden_lies_within_its_plan(plan, small_golden):
    fewest, most = plan.disk
    size = sum(file.stat().st_size for file in small_golden.folder.iterdir())
    rounds = [len(prompt.generation.acceptance_length) for prompt in small_golden.manifest.case.prompts]
    assert fewest <= size <= most < 2 * fewest
    assert plan.rounds[0] <= min(rounds) and max(rounds) <= plan.rounds[1]
    assert plan.geometry["q width"] == 256 and plan.memory == 6 * plan.parameters


def test_a_limit_that_cannot_be_kept_is_refused_before_any_work(plan):
    plan.refuse_beyond(plan.disk[0])
    with pytest.raises(UsageError, match="nothing was written"):
        plan.refuse_beyond(plan.disk[0] - 1)


def test_numbers_of_mxfp4_count_two_a_byte(tiny):
    counts = [golden_plan((tiny / t, tiny / "drafter"), "p-eagle", [9], 3, 4) for t in ("target", "target-mxfp4")]
    scales = counts[1].parameters - counts[0].parameters
    assert 0 < scales < 0.05 * counts[0].parameters and counts[1].read < counts[0].read


@pytest.mark.parametrize(("most", "what"), [(100, "p000.float32.safetensors"), (900, "manifest.json")])
def test_a_folder_that_would_exceed_its_limit_is_not_written(most, what, shallow_golden, tmp_path):
    manifest, named = shallow_golden.manifest, shallow_golden.declared["target.tokens"]
    with pytest.raises(UsageError, match=what), DumpWriter(tmp_path / "made", most) as writer:
        writer.add(0, "float32", [named], {(0, named.name): np.arange(50)})
        fields = {name: getattr(manifest, name) for name in ("stages", "created", "producer", "model", "case")}
        writer.finish(kind="golden", **fields)
    assert not [*tmp_path.iterdir()]
