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


def side(name: str, target, drafter, **more) -> SimpleNamespace:
    """A dump that says that it read these."""
    model = SimpleNamespace(target=SimpleNamespace(constants=target), drafter=SimpleNamespace(constants=drafter))
    manifest = SimpleNamespace(model=model, corroborations=(), producer=SimpleNamespace(name=name))
    made = SimpleNamespace(manifest=manifest, **more)
    made.sides = more.get("sides", (made,))
    return made


def test_numbers_are_told_one_by_one_and_placed_nowhere():
    golden = side("ref", {"x": 1, "y": 2.5, "z": (1, 2)}, {"w": "a"})
    own = side("own", {"x": 2, "z": (1, 3), "more": 4, "and": 5}, {"w": "a"})
    found = check_constants(golden, own)
    assert [(one.kind, one.stage, one.prompt, one.round) for one in found.findings] == [("config", "config", 0, 0)] * 3
    assert [one.message for one in found.findings] == [
        "own, target: x is 2, the reference reads 1", "own, target: y is unread, the reference reads 2.5",
        "own, target: z is [1, 3], the reference reads [1, 2]",
    ]  # fmt: skip
    assert found.compared == 4 and found.silent == "" and found.set_aside == ()
    assert found.unjudged == ("the reference does not read and, more of the target, own does",)


def test_two_devices_are_compared_with_each_other_and_what_one_alone_reads_is_not_judged():
    golden = side("ref", {"x": 7}, {"x": 7})
    two = (side("one", {"x": 1, "y": 2}, {}), side("other", {"x": 3, "z": 4}, {"w": 5}))
    found = check_constants(golden, side("both", {}, {}, sides=two))
    assert [one.message for one in found.findings] == ["other, target: x is 3, one reads 1"] and found.compared == 2
    assert found.unjudged == (
        "one does not read z of the target, other does", "other does not read y of the target, one does",
        "one does not say what it read of config.json",
    )  # fmt: skip


def test_a_side_that_only_the_reference_describes_is_named():
    golden, own = side("ref", {"x": 1}, {"y": 2}), side("own", {"x": 1}, {})
    found = check_constants(golden, own)
    assert (found.silent, found.compared, found.unjudged) == (
        "drafter", 1, ("own does not say what it read of config.json of the drafter",)
    )  # fmt: skip
    assert check_constants(golden, side("own", {}, {"y": 2})).silent == "target"
    for silent in (check_constants(golden, side("own", {}, {})), check_constants(side("ref", {"x": 1}, {}), own)):
        assert silent.silent == ""
    assert check_constants(side("ref", {}, {}), own).unjudged == (
        "the reference does not say what it read of config.json",
    )
