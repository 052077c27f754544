"""The goldens of a night: made once, kept, fetched whole, and never of another case."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import fsspec
import pytest

from parity.errors import UsageError
from parity.golden.store import Dump
from parity.nightly import goldens
from parity.nightly.goldens import fetch, local, provide, publish
from parity.nightly.process import CellJob, GoldenJob, Job, environment, run_job
from parity.remote import Unreachable
from tests.golden.edits import rewrite
from tests.nightly.conftest import ROOT

DRAWN = "temperature=1.0,top_k=0,top_p=1.0,min_p=0.0,rule=residual"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """A fresh $PARITY_HOME."""
    monkeypatch.setenv("PARITY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def job(pair, tiny_golden) -> GoldenJob:
    """A golden to make, as `tiny_golden` was."""
    return GoldenJob(
        name="one.peagle.k2",
        **pair,
        prompts=str(tiny_golden.folder.parent / "one.jsonl"),
        max_new_tokens=4,
        k=2,
    )


@pytest.fixture
def make(tiny_golden):
    """Copies the golden instead of making it; counts."""

    def copy(job: GoldenJob, out: Path) -> None:
        copy.made += 1
        shutil.copytree(tiny_golden.folder, out)

    copy.made = 0
    return copy


@pytest.fixture
def copied(tiny_golden, tmp_path) -> Path:
    """A golden to spoil."""
    return Path(shutil.copytree(tiny_golden.folder, tmp_path / "copy"))


def spoil(folder: Path) -> None:
    """Flip a bit of a tensor."""
    shard = sorted(folder.glob("*.safetensors"))[0]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)


def edit(folder: Path, change) -> None:
    """Change the manifest."""
    rewrite(folder, change)


def test_a_golden_is_made_once_and_kept(job, make, home):
    first, second = (provide(job, make) for _ in range(2))
    assert first == second and make.made == 1 and first.url == ""
    assert Path(first.golden).is_relative_to(home / "nightly" / "goldens")
    assert [*(home / "nightly/goldens").iterdir()] == [Path(first.golden)]


def test_a_stale_or_damaged_one_is_made_anew(job, make):
    kept = Path(provide(job, make).golden)
    edit(kept, lambda manifest: manifest["producer"]["sources"].update({"parity.references.loop": "0" * 64}))
    assert Path(provide(job, make).golden).is_dir() and make.made == 2
    spoil(Path(provide(job, make).golden))
    provide(job, make)
    assert make.made == 3


def test_other_prompts_are_another_golden(job, make, tmp_path):
    provide(job, make)
    (tmp_path / "one.jsonl").write_text(Path(job.prompts).read_text() + "\n")
    other = job.model_copy(update={"prompts": str(tmp_path / "one.jsonl")})
    assert goldens.identity(other) != goldens.identity(job)


def test_a_kept_golden_names_the_checkpoints_where_they_are(job, make, tmp_path):
    kept = Path(provide(job, make).golden)
    assert Dump(kept).manifest.model.target.path == job.target
    moved = job.model_copy(update={"target": str(shutil.copytree(job.target, tmp_path / "moved"))})
    assert provide(moved, make).golden == str(kept) and make.made == 1
    assert Dump(kept).manifest.model.target.path == str(tmp_path / "moved")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"k": 4}, "is of K = 2, not 4"),
        ({"schedule": (2, 0)}, "is of K = 2, not 2,0"),
        ({"max_new_tokens": 5}, "is of 4 new tokens, not 5"),
        ({"sample": DRAWN}, "is of tokens drawn by nothing, greedily, not temperature=1.0"),
        ({"target": "target-mxfp4"}, "is of another target"),
        ({"prompts": "prompts/raw.jsonl"}, "is of other prompts"),
    ],
    ids=["K", "schedule", "budget", "sampling", "target", "prompts"],
)
def test_a_given_golden_of_another_case_is_refused(change, words, job, tiny, tiny_golden):
    change = {key: str(tiny / value) if key in ("target", "prompts") else value for key, value in change.items()}
    with pytest.raises(UsageError, match=words):
        provide(job.model_copy(update={"given": str(tiny_golden.folder), **change}), None)


def test_a_given_run_is_no_golden(job, copied):
    def run(manifest):
        manifest.update(kind="run", tensors=[row for row in manifest["tensors"] if row["variant"] == "float32"])
        manifest["case"].update(mode="chained")

    edit(copied, run)
    with pytest.raises(UsageError, match="is no golden"):
        provide(job.model_copy(update={"given": str(copied)}), None)


def test_one_of_an_url_is_fetched_once_and_verified(job, tiny_golden, home, monkeypatch):
    url = "memory://store/tiny"
    publish(tiny_golden.folder, url)
    folder = local(job, url)
    assert folder.parent == home / "nightly" / "goldens" and goldens._whole(folder)
    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "get_file", None)
    assert local(job, url) == folder, "nothing is fetched again"


def test_an_url_without_a_golden_or_an_answer(job):
    with pytest.raises(UsageError, match="there is no golden at memory://store/nothing"):
        fetch("memory://store/nothing")
    with pytest.raises(UsageError, match="nonsense://x cannot be read: ValueError"):
        fetch("nonsense://x")


def test_a_store_that_does_not_answer_is_worth_another_try(monkeypatch):
    def refuse(*arguments, **options):
        raise ConnectionError("refused")

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "cat_file", refuse)
    with pytest.raises(Unreachable, match="does not answer: ConnectionError"):
        fetch("memory://store/tiny")


@pytest.mark.parametrize(
    ("change", "words"),
    [(spoil, "is damaged"), (lambda folder: sorted(folder.glob("*.safetensors"))[0].unlink(), "there is no golden at")],
    ids=["one bit", "a shard missing"],
)
def test_a_damaged_golden_is_refused_and_leaves_nothing(change, words, copied, home):
    change(copied)
    with pytest.raises(UsageError, match=words):
        fetch(f"file://{copied}")
    assert not list((home / "nightly/goldens").iterdir())


def test_a_shard_outside_the_folder_is_refused(copied, home):
    edit(copied, lambda manifest: manifest["tensors"][0].update(shard="../../evil.safetensors"))
    with pytest.raises(UsageError, match="names a shard outside its folder"):
        fetch(f"file://{copied}")
    assert not list((home / "nightly/goldens").iterdir())


def test_made_goldens_are_shared_between_machines(job, make, tmp_path, monkeypatch):
    shared = job.model_copy(update={"share": f"file://{tmp_path}/store"})
    made = provide(shared, make)
    assert make.made == 1 and made.url.startswith(f"file://{tmp_path}/store/")
    assert provide(shared, make) == made
    monkeypatch.setenv("PARITY_HOME", str(tmp_path / "another machine"))
    fetched = provide(shared, make)
    assert (
        make.made == 1 and fetched.url == made.url and Path(fetched.golden).is_relative_to(tmp_path / "another machine")
    )


def test_a_cell_fetches_its_golden(cell, tiny_golden, tmp_path):
    job = Job(cell=CellJob(night="now", cell=cell, golden=f"file://{tiny_golden.folder}"))
    answer = run_job(job.model_dump_json(), tmp_path / "log", 120, environment(), str(ROOT))
    assert answer.result is not None and answer.result.verdict == "pass", answer.error
    assert Path(answer.result.golden).is_relative_to(Path(os.environ["PARITY_HOME"]))
