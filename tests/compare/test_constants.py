"""Numbers of config.json: of one kind, and of both sides or of none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parity.compare import compare
from parity.compare.constants import check_constants
from parity.golden.store import Dump
from parity.policy import read_policy
from tests.meta.dumps import clean, write
from tests.meta.worlds import Size


def reading(dump: Dump, **sides) -> Dump:
    """The dump with these constants of target and drafter."""
    model = dump.manifest.model
    read = {side: getattr(model, side).model_copy(update={"constants": constants}) for side, constants in sides.items()}
    dump.manifest = dump.manifest.model_copy(update={"model": model.model_copy(update=read)})
    return dump


@pytest.mark.parametrize("true, seen", [((0, 1), (False, True)), (1, True), ((1,), 1)])
def test_a_truth_value_is_no_number_inside_a_list_either(true, seen):
    def side(value):
        part = SimpleNamespace(constants={"x": value})
        made = SimpleNamespace(
            manifest=SimpleNamespace(model=SimpleNamespace(target=part, drafter=part), corroborations=())
        )
        made.manifest.producer = SimpleNamespace(name="device")
        made.sides = (made,)
        return made

    assert len(check_constants(side(true), side(seen)).findings) == 2
    assert not check_constants(side(true), side(true)).findings


def test_a_device_that_describes_one_side_only_is_inconclusive(tmp_path):
    golden, run = write(clean(Size(prompts=(40,))), tmp_path)
    both = {"target": {"x": 1}, "drafter": {"y": 2}}
    policy = read_policy(None, "bfloat16")
    for said, code in ((both, 0), ({}, 0), ({"target": {"x": 1}, "drafter": {}}, 3)):
        report = compare(reading(golden, **both), reading(run, **{"target": {}, "drafter": {}} | said), policy)
        assert report.exit_code == code, said
    assert any("run does not say what it read of config.json of the drafter" in one for one in report.unseen)
