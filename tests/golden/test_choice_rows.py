"""Which golden is the newest and why others are set apart, by hand; where checkpoints are looked for."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from parity.errors import UsageError
from parity.golden import choice
from parity.golden.choice import Wanted, choose, newest, special
from parity.golden.manifest import FILE


def manifest(created: str = "2026-01-01", kind: str = "golden", derived: str = "", stages=("a", "b", "c"), **case):
    case = {"sampling": "", "kept": (), "positions": ""} | case
    return SimpleNamespace(
        created=created, kind=kind, derived=derived, stages=stages, table=dict.fromkeys("abc"),
        case=SimpleNamespace(**case), producer=SimpleNamespace(modules=("m",)),
    )  # fmt: skip


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """`shelf(name, manifest, written)` puts a golden that reads as this manifest; None is one that cannot be read."""
    held = {}

    def put(name: str, made, written: float = 1e9) -> Path:
        folder = tmp_path / "goldens" / name
        folder.mkdir(parents=True)
        (folder / FILE).touch()
        os.utime(folder / FILE, (written, written))
        held[folder] = made
        return folder

    def read(folder: Path):
        if held[folder] is None:
            raise UsageError(f"{folder} cannot be read")
        return held[folder]

    monkeypatch.setattr(choice, "read_manifest", read)
    monkeypatch.setattr(choice, "Dump", lambda folder, made=None: SimpleNamespace(folder=folder, manifest=held[folder]))
    return put


def test_the_one_that_was_dumped_last_is_the_newest_and_of_two_the_one_written_last(shelf):
    shelf("a", manifest("2026-01-02"), 3e9), shelf("b", manifest("2026-01-03"), 1e9)
    newer = shelf("c", manifest("2026-01-03"), 2e9)
    dump, why = newest(newer.parent)
    assert dump.folder == newer and why == f"the newest of 3 in {newer.parent}"


def test_one_that_cannot_be_read_is_as_new_as_its_file(shelf):
    """1e9 s are 2001-09-09T01:46:40+00:00."""
    whole = shelf("a", manifest("2001-09-09T01:46:41+00:00"), 2e9)
    shelf("b", None, 1e9)
    assert newest(whole.parent)[0].folder == whole
    shelf("c", None, 1e9 + 2)
    with pytest.raises(UsageError, match="c cannot be read"):
        newest(whole.parent)


def test_those_set_apart_are_named_three_at_the_most_the_newest_first(shelf):
    reasons = [{"derived": "cut"}, {"kind": "run"}, {"sampling": "t"}, {"positions": "1"}, {"stages": ("b",)}]
    for number, change in enumerate(reasons):
        shelf(f"odd{number}", manifest(f"2026-02-0{9 - number}", **change))
    folder = shelf("whole", manifest()).parent
    three = "odd0, which is cut; odd1, which is a device's run; odd2, which samples"
    assert newest(folder)[1] == f"the newest of 6 in {folder}; set apart: {three}; and 2 more"
    (folder / "whole" / FILE).unlink()
    with pytest.raises(UsageError) as refused:
        newest(folder)
    assert str(refused.value) == (
        f"no golden of a whole case in {folder}: {three}; and 2 more; make one with `parity dump-golden`, or name "
        "--golden DIR"
    )
    for number in (3, 4):
        (folder / f"odd{number}" / FILE).unlink()
    with pytest.raises(UsageError, match=r"odd2, which samples; make one"):
        newest(folder)


def test_an_empty_shelf_says_so_and_hidden_folders_are_none(shelf, tmp_path):
    folder = shelf(".torn", manifest()).parent
    with pytest.raises(UsageError, match=rf"no golden of a whole case in {folder}; make one"):
        newest(folder)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"stages": ("c", "b", "a", "d")}, ""),
        ({"kind": "run", "derived": "cut"}, "is a device's run"),
        ({"derived": "cut from G", "sampling": "t"}, "is cut from G"),
        ({"sampling": "temperature=1", "positions": "1"}, "samples"),
        ({"kept": ("sketch",)}, "keeps less than whole tensors"),
        ({"positions": "0-9", "stages": ()}, "keeps less than whole tensors"),
        ({"stages": ("a", "d")}, "lacks 2 of 3 stages"),
        ({"stages": ("a", "b")}, "lacks 1 of 3 stages"),
    ],
)
def test_the_first_reason_not_to_judge_by_one_is_told(change, why):
    assert special(manifest(**change)) == why


def test_an_imported_one_is_told_before_what_it_lacks():
    imported = manifest(stages=())
    imported.producer = SimpleNamespace(modules=())
    assert special(imported) == "is imported"


def test_a_run_that_is_named_is_refused(shelf):
    run = shelf("run", manifest(kind="run"))
    with pytest.raises(UsageError, match=rf"^{run} is a device's run, not a golden; a golden comes from a reference"):
        choose(Wanted(run), run.parent)


def test_a_relative_checkpoint_is_looked_for_here_and_around_the_dump(tmp_path, monkeypatch):
    dump = tmp_path / "a" / "b" / "golden"
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def found() -> Path:
        model = SimpleNamespace(target=SimpleNamespace(path="pair/target"))
        made = SimpleNamespace(folder=dump, manifest=SimpleNamespace(model=model))
        return choice._place(made, "target", None)

    assert found() == Path("pair/target")
    for above in ("", "a", "a/b", "here"):
        place = tmp_path / above / "pair/target"
        place.mkdir(parents=True)
        assert found() != place  # without a config.json it is none
        (place / "config.json").touch()
        assert found() == place


def test_an_absolute_checkpoint_is_where_it_is_recorded():
    model = SimpleNamespace(target=SimpleNamespace(path="/lost/target"))
    made = SimpleNamespace(folder=Path("/x"), manifest=SimpleNamespace(model=model))
    assert choice._place(made, "target", None) == Path("/lost/target")


def test_what_differs_of_a_named_checkpoint_is_listed(tmp_path, monkeypatch):
    known = SimpleNamespace(path="/lost", **dict.fromkeys(choice.DIGESTS, "same"))
    made = SimpleNamespace(folder=Path("/g"), manifest=SimpleNamespace(model=SimpleNamespace(drafter=known)))
    now = SimpleNamespace(**vars(known))
    monkeypatch.setattr(choice, "checkpoint", lambda folder: now)
    (tmp_path / "link").symlink_to(tmp_path)
    assert choice._place(made, "drafter", tmp_path / "link") == tmp_path
    now.weights_digest = now.chat_template_digest = "other"
    with pytest.raises(UsageError) as refused:
        choice._place(made, "drafter", tmp_path)
    said = f"--drafter {tmp_path} is not the drafter that /g was dumped from: its weights, chat template differ"
    assert str(refused.value) == said
