"""Which golden judges by default, and where its checkpoints are looked for."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from parity.errors import UsageError
from parity.golden.choice import Wanted, choose
from parity.golden.manifest import FILE
from parity.golden.provenance import checkpoint, handed_on
from parity.golden.reading import read_manifest

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture
def shelf(small_golden, tmp_path):
    """`shelf(name, **changes)` puts one more golden, newer than all, into a folder; its shards are the small one's."""
    made = []

    def put(name: str, **changes) -> Path:
        folder = tmp_path / "home" / "goldens" / name
        shutil.copytree(small_golden.folder, folder, copy_function=os.link, ignore=lambda *_: {FILE})
        manifest = small_golden.manifest.model_copy(update=changes)
        listed = tuple(row for row in manifest.tensors if row.place[2] in manifest.stages)
        manifest = manifest.model_copy(update=dict(tensors=listed))
        (folder / FILE).write_bytes(manifest.written())
        made.append(folder)
        os.utime(folder / FILE, (1e9 + len(made), 1e9 + len(made)))
        return folder

    return put


def test_the_newest_golden_of_a_whole_case_is_the_default(shelf):
    shelf("older"), (newest := shelf("newer"))
    golden, why = choose(Wanted(), newest.parent)
    assert golden.folder == newest and why == f"the newest of 2 in {newest.parent}"


def test_a_golden_whose_manifest_was_written_again_is_no_newer(shelf):
    newer = shelf("newer", created="2026-02-02T00:00:00+00:00")
    shelf("older", created="2026-01-01T00:00:00+00:00")
    assert choose(Wanted(), newer.parent)[0].folder == newer


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"derived": "cut from G by parity reduce"}, "which is cut from G by parity reduce"),
        ({"stages": ("target.logits", "verify.logits")}, "which lacks 124 of 126 stages"),
        ({"producer": "nobody"}, "which is imported"),
    ],
)
def test_a_special_golden_is_never_the_default_and_is_judged_by_when_named(change, why, shelf, small_golden):
    if change.get("producer"):
        change = {"producer": small_golden.manifest.producer.model_copy(update={"modules": (), "parts": ()})}
    whole, odd = shelf("whole"), shelf("odd", **change)
    golden, said = choose(Wanted(), whole.parent)
    assert golden.folder == whole and f"set apart: odd, {why}" in said
    shutil.rmtree(whole)
    with pytest.raises(UsageError, match=f"no golden of a whole case in .*odd, {why}"):
        choose(Wanted(), odd.parent)
    if change.keys() <= {"derived", "producer"}:
        assert choose(Wanted(odd), odd.parent)[1] == "named"


def test_what_a_killed_dump_left_is_none(shelf):
    whole, _ = shelf("whole"), shelf(".torn.17.partial")
    assert choose(Wanted(), whole.parent)[0].folder == whole


def test_what_is_said_of_a_golden_is_whether_it_was_named(parity, shelf, small_golden):
    newest = shelf("whole")
    told = parity("diff", "--device", "no.such:device")
    assert told.golden == f"golden: {newest} (the newest of 1 in {newest.parent})"
    assert (
        parity("diff", "--device", "no.such:device", "--golden", small_golden.folder).golden
        == f"golden: {small_golden.folder} (named)"
    )


def test_a_checkpoint_is_recorded_where_it_is_whatever_the_working_directory(tiny, monkeypatch):
    monkeypatch.chdir(tiny)
    assert checkpoint(Path("target")).path == str(tiny / "target")


def test_a_moved_checkpoint_is_named_again(parity, shelf, small_golden, tiny, tmp_path):
    model = small_golden.manifest.model
    lost = {side: getattr(model, side).model_copy(update={"path": f"/lost/{side}"}) for side in ("target", "drafter")}
    golden = shelf("moved", model=model.model_copy(update=lost))
    found = parity("run", "--golden", golden)
    assert found.code == 2 and "/lost/target is no checkpoint" in found.err and "--target" in found.err
    target = Path(shutil.copytree(tiny / "target", tmp_path / "target"))
    opened, _ = choose(Wanted(golden, target, tiny / "drafter"), golden.parent)
    assert {opened.manifest.model.target.path, opened.manifest.model.drafter.path} == {
        str(target),
        str(tiny / "drafter"),
    }
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-6}))
    for command in ("run", "gate", "diagnose", "reduce", "calibrate", "engines", "diff"):
        found = parity(command, "--golden", golden, "--target", target, "--drafter", tiny / "drafter")
        assert found.code == 2 and f"--target {target} is not the target" in found.err and "config" in found.err


@pytest.mark.parametrize("folder", sorted(path.parent for path in FIXTURES.rglob(FILE)), ids=lambda path: path.name)
def test_goldens_that_ship_find_their_checkpoints_from_anywhere(folder, monkeypatch, tmp_path):
    recorded = read_manifest(folder).model
    monkeypatch.chdir(tmp_path)
    found = choose(Wanted(folder), tmp_path)[0].manifest.model
    for side in ("target", "drafter"):
        assert not Path(getattr(recorded, side).path).is_absolute()
        assert Path(getattr(found, side).path).is_relative_to(FIXTURES)
    assert handed_on(found, FIXTURES.parent) == recorded
