"""A dump that was killed goes on with the prompts that are not done, and ends in the same bytes."""

from __future__ import annotations

import json
import shutil

import pytest

from parity.errors import UsageError
from parity.golden import shards
from parity.producers import dump_golden
from tests.sample import WHOLE, cut
from tests.shallow import cut_pair

SEVENTH = 7


@pytest.fixture(scope="module")
def dumped(tiny, tmp_path_factory):
    """Dump three short prompts of two layers; `dies_at` is the prompt before which the process ends."""
    prompts = tmp_path_factory.mktemp("prompts") / "three.jsonl"
    pair = cut_pair(tiny, prompts.parent)
    lines = (tiny / "prompts/chat.jsonl").read_text().splitlines()[:3]
    prompts.write_text("\n".join(cut(line, words=8) for line in lines))

    def dump(out, dies_at=None, **options):
        begun = []

        def progress(number, total, name):
            begun.append(number)
            if number == dies_at:
                raise KeyboardInterrupt

        asked = dict(prompts=prompts, max_new_tokens=4, k=2, out=out, progress=progress) | pair | options
        try:
            dump_golden(**asked)
        except KeyboardInterrupt:
            assert dies_at is not None and not out.exists()
        return begun

    return dump


@pytest.fixture(scope="module")
def undisturbed(dumped, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "golden"
    dumped(out)
    return contents(out)


def contents(folder):
    """Every file's bytes; of the manifest all but the time and its own digest."""
    held = {path.name: path.read_bytes() for path in folder.iterdir()}
    manifest = json.loads(held.pop("manifest.json"))
    return held, {name: value for name, value in manifest.items() if name not in ("created", "digest")}


def test_it_goes_on_and_ends_in_the_same_bytes(dumped, undisturbed, tmp_path):
    out = tmp_path / "golden"
    assert dumped(out, dies_at=1, resume=True) == [0, 1]
    assert dumped(out, dies_at=2, resume=True) == [1, 2]
    assert dumped(out, resume=True) == [2, 3]
    assert contents(out) == undisturbed
    assert [path.name for path in tmp_path.iterdir()] == ["golden"], "nothing is left beside it"


def test_without_it_nothing_is_kept(dumped, tmp_path):
    dumped(tmp_path / "golden", dies_at=1)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def one_done(dumped, tmp_path_factory):
    """The parts of a golden of which one prompt is done."""
    folder = tmp_path_factory.mktemp("killed")
    dumped(folder / "golden", dies_at=1, resume=True)
    return folder / "golden.parts"


@pytest.fixture
def killed(one_done, tmp_path):
    """A golden of which one prompt is done: where it will be, and its parts."""
    shutil.copytree(one_done, tmp_path / "golden.parts")
    return tmp_path / "golden", tmp_path / "golden.parts"


@pytest.mark.parametrize("damage", ["tensor", "truncated", "journal", "shard gone"])
def test_a_damaged_part_is_computed_again(damage, killed, dumped, undisturbed, noted):
    out, parts = killed
    shard = parts / "p000.bfloat16.safetensors"
    if damage == "tensor":
        held = {name: value.copy() for name, value in shards.read(shard).items()}
        next(iter(held.values())).reshape(-1).view("uint8")[SEVENTH] ^= 1
        shards.write(shard, held)
    elif damage == "truncated":
        shard.write_bytes(shard.read_bytes()[:-SEVENTH])
    elif damage == "journal":
        (parts / "p000.json").write_text("{")
    else:
        shard.unlink()
    whole = WHOLE or damage == "tensor"
    assert dumped(out, resume=True, dies_at=None if whole else 1)[0] == 0 and (
        not whole or contents(out) == undisturbed
    )
    assert "p000.json is damaged: its prompt is computed again" in noted.text


def test_parts_of_another_golden_are_refused_and_kept(killed, dumped):
    out, parts = killed
    kept = sorted(parts.iterdir())
    with pytest.raises(UsageError, match=r"golden\.parts is of another golden"):
        dumped(out, resume=True, max_new_tokens=5)
    assert sorted(parts.iterdir()) == kept and not out.exists()


def test_a_part_that_names_a_file_elsewhere_is_damaged(killed, dumped, undisturbed, tmp_path):
    out, parts = killed
    shutil.copy(parts / "p000.bfloat16.safetensors", tmp_path / "elsewhere.safetensors")
    told = (parts / "p000.json").read_text()
    (parts / "p000.json").write_text(told.replace("p000.bfloat16.safetensors", "../elsewhere.safetensors"))
    whole = WHOLE
    assert dumped(out, resume=True, dies_at=None if whole else 1)[0] == 0
    assert not whole or contents(out) == undisturbed


def test_it_needs_a_place(dumped):
    with pytest.raises(UsageError, match="--resume needs --out"):
        dumped(None, resume=True)
