"""Two dumps of a case by hand: the first difference in the order of the data, and what else differs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from parity.errors import UsageError
from parity.golden import verify
from parity.golden.manifest import TensorRow, key
from parity.golden.trust import Changes
from parity.golden.verify import check_bytes, verified, write_prompts
from parity.stages import declared

NAMES = declared(1, 1)
EMBED, LOGITS, VERIFY = "target.embed", "target.logits", "verify.logits"


def row(variant: str, prompt: int, round_: int, stage: str, sha: str = "a" * 64, rank: int = 0, **changes) -> TensorRow:
    fields = dict(axes=("S",), dtype="float32", shape=(2,), start=0, shard="one", rank=rank) | changes
    return TensorRow(key=key(prompt, round_, stage), variant=variant, sha256=sha, **fields)


EVERY = [
    row(variant, prompt, round_, stage)
    for variant in verify.VARIANTS
    for prompt in (0, 1)
    for round_, stage in ((0, EMBED), (0, LOGITS), (1, EMBED), (1, VERIFY))
]


class Case(SimpleNamespace):
    model_fields = ("k", "seed", "prompts_digest")

    def model_copy(self, update):
        return Case(**vars(self) | update)


def dump(rows=EVERY, stages=("a",), versions=None, platform="Linux", **case):
    prompts = [SimpleNamespace(id="one", ids=(1, 2)), SimpleNamespace(id="two", ids=(3,))]
    case = Case(**{"k": 4, "seed": 0, "prompts_digest": "x", "prompts": prompts} | case)
    producer = SimpleNamespace(versions=versions or {"numpy": "2"}, platform=platform)
    manifest = SimpleNamespace(tensors=rows, stages=stages, case=case, producer=producer)
    places = [(one.variant, *one.place) for one in rows]
    return SimpleNamespace(folder=Path("/g"), manifest=manifest, rows=places, declared=NAMES, record=places.append)


@pytest.fixture(autouse=True)
def since(monkeypatch):
    """What changed since the first dump."""
    found = {"changes": Changes((), ("the source of m",), ("nobody can tell",))}
    monkeypatch.setattr(verify, "changes", lambda golden: found["changes"])
    return found


def edited(*numbers: int, **changes):
    return dump([row_.model_copy(update=changes) if n in numbers else row_ for n, row_ in enumerate(EVERY)])


def test_two_dumps_that_are_alike_pass_whatever_shard_a_tensor_lies_in():
    found = verified(dump(), edited(3, shard="two"))
    assert (found.golden, found.tensors, found.differing, found.first, found.case) == ("/g", 24, 0, "", ())
    assert (found.sources, found.unknown, found.versions) == (("the source of m",), ("nobody can tell",), ())
    assert found.exit_code == 0 and found.to_dict()["exit_code"] == 0 and found.to_dict()["tensors"] == 24


@pytest.mark.parametrize(
    ("numbers", "first"),
    [
        ((23, 8), "target.embed (bfloat16), prompt 0, round 0"),
        ((8, 7), "verify.logits (float32), prompt 1, round 1"),  # the truth before its floors
        ((3, 6), "target.embed (float32), prompt 1, round 1"),  # the data's order before the prompts'
        ((4, 1), "target.embed (float32), prompt 1, round 0"),
        ((5, 1), "target.logits (float32), prompt 0, round 0"),
        ((5, 2), "target.logits (float32), prompt 1, round 0"),  # rounds before stages
        ((23,), "verify.logits (bfloat16.local), prompt 1, round 1"),
    ],
)
def test_the_first_difference_is_the_first_in_the_order_of_the_data(numbers, first):
    found = verified(dump(), edited(*numbers, sha256="b" * 64))
    assert found.first == f"{first}: sha256 {'a' * 12} became {'b' * 12}"
    assert (found.differing, found.exit_code, found.tensors) == (len(numbers), 1, 24)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shape": (3,), "sha256": "b" * 64}, "float32 [2] became float32 [3]"),
        ({"dtype": "bfloat16"}, "float32 [2] became bfloat16 [2]"),
    ],
)
def test_another_shape_or_dtype_is_told_before_other_bytes(changes, said):
    assert verified(dump(), edited(0, **changes)).first == f"target.embed (float32), prompt 0, round 0: {said}"


def test_what_one_side_alone_has_is_told_by_the_side():
    less = dump(EVERY[1:])
    said = "target.embed (float32), prompt 0, round 0: only"
    assert verified(dump(), less).first == f"{said} the golden has it" and verified(dump(), less).tensors == 24
    assert verified(less, dump()).first == f"{said} the second dump has it" and verified(less, dump()).tensors == 23
    ranks = [*EVERY, row("float32", 0, 0, LOGITS, rank=1)]
    assert verified(dump(), dump(ranks)).differing == 1


def test_a_stage_that_no_table_has_comes_last():
    rows = [*EVERY, row("float32", 0, 0, "odd")]
    other = [*EVERY[:-1], EVERY[-1].model_copy(update={"sha256": "b"}), row("float32", 0, 0, "odd", "b")]
    assert verified(dump(rows), dump(other)).first.startswith("verify.logits (bfloat16.local)")


def test_the_case_is_compared_but_for_its_file_and_so_are_the_stages():
    found = verified(dump(), dump(prompts_digest="y"))
    assert (found.case, found.exit_code) == ((), 0)
    found = verified(dump(), dump(k=5, seed=1, stages=("b",)))
    assert found.case == ("k of the case", "seed of the case", "the declared stages") and found.exit_code == 1


def test_versions_and_the_platform_are_told_in_order_and_decide_nothing():
    found = verified(dump(versions={"numpy": "2", "torch": "1"}), dump(versions={"numpy": "3", "a": "1"}, platform="M"))
    assert found.versions == ("a None to 1", "numpy 2 to 3", "torch 1 to None", "Linux to M") and found.exit_code == 0


def test_every_tensor_is_read_and_a_changed_checkpoint_refused(since):
    read = []
    golden = dump()
    golden.record = lambda *place: read.append(place)
    check_bytes(golden)
    assert read == golden.rows and len(read) == 24
    since["changes"] = Changes(tuple(f"the target's {n}" for n in "abcde"), (), ())
    with pytest.raises(UsageError) as refused:
        check_bytes(golden)
    four = ", ".join(f"the target's {n}" for n in "abcd")
    assert str(refused.value) == f"/g is stale: {four} and 1 more changed since it was dumped"


def test_prompts_are_written_as_ids(tmp_path):
    path = write_prompts(dump(), tmp_path / "p.jsonl")
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"id": "one", "ids": [1, 2]}, {"id": "two", "ids": [3]},
    ]  # fmt: skip
    assert path.read_text().endswith("]}\n")
