"""A short case, its golden and the device's run over it, and the dumps that other tools wrote of that run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from parity.api import compare_dumps, run_device
from parity.fixtures.recipe.imports import STAGES, aws
from parity.golden.store import Dump
from parity.imports.names import read_map
from parity.imports.run import ImportRequest, import_run
from parity.imports.torch_file import torch_load

RECORDED = Path(__file__).parents[2] / "fixtures" / "imports"


@pytest.fixture(scope="session")
def short_golden(remake_small_golden, tmp_path_factory) -> Dump:
    """One prompt of five tokens, K = 2, four new tokens: the case of the recorded dumps."""
    out = tmp_path_factory.mktemp("short") / "golden"
    return remake_small_golden(out, prompts=RECORDED / "short.jsonl", max_new_tokens=4, k=2)


@pytest.fixture(scope="session")
def short_run(short_golden, tmp_path_factory) -> Dump:
    """The bfloat16 device over that case."""
    return run_device(short_golden, "numpy", "chained", out=tmp_path_factory.mktemp("short") / "run")


@pytest.fixture
def dumped(short_run, tmp_path):
    """The dump of a tool: unpacked, or laid out as its page says."""

    def unpack(tool: str) -> Path:
        folder = tmp_path / tool
        if tool == "aws":
            aws(short_run, folder)
        else:
            shutil.unpack_archive(RECORDED / f"{tool}.zip", folder)
        return folder

    return unpack


@pytest.fixture
def imported(short_golden, tmp_path):
    """Import a dump over the short case; the run folder, opened."""

    def make(source: str, *paths: Path, names: str | Path | None = None, reference: str = "") -> Dump:
        out = tmp_path / "imported"
        found = read_map(str(names) if names else None)
        import_run(ImportRequest(source, paths, found, short_golden, out, torch_load, reference))
        return Dump(out)

    return make


@pytest.fixture
def refused(parity, short_golden, tmp_path):
    """Import: one sentence with these words, exit 2, and no run folder."""

    def check(source, *paths, words, names=None):
        if names is not None and not str(names).endswith(".toml"):
            (tmp_path / "map.toml").write_text(names)
            names = tmp_path / "map.toml"
        options = ["--map", names] if names else []
        found = parity(
            "import", "--from", source, *paths, "--golden", short_golden.folder, "--out", tmp_path / "run", *options
        )
        assert found.code == 2 and found.err.count("\n") == 1 and "internal error" not in found.err, found
        assert all(word in found.err for word in words), found.err
        assert not [path for path in tmp_path.iterdir() if path.name.startswith((".run", "run"))]

    return check


def verdicts(golden: Dump, run: Dump, stages=tuple(STAGES)) -> dict[str, str]:
    """The verdict of each stage."""
    return {result.stage: result.verdict for result in compare_dumps(golden, run, stages).stages}
