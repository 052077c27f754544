"""Session-wide goldens and runs of the tiny pair, made once."""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from parity.golden.store import Dump
from parity.golden.views import TrustedGolden
from tests import nights
from tests.foreground import restore_signals
from tests.sample import WHOLE, by_night, cut
from tests.shallow import cut_pair, cut_target, cut_tiny

restore_signals()
os.environ.pop("COLUMNS", None)  # xdist tells its workers a width; what is tested prints as in a pipe

gc.set_threshold(100_000, 20, 50)
"""Torch and transformers leave half a million objects: to walk them as often as by default is a sixth of all time."""

LIBRARY = 200
"""So many new modules are a library: what it leaves is walked no more, not by a collection of a bench either."""

walked = {"modules": 0}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What tests/nights.txt leaves to the night."""
    late = nights.listed()
    for item in items:
        if item.nodeid in late:
            item.add_marker(by_night)


def pytest_collection_finish() -> None:
    """The tests themselves, and what they imported, live as long as the worker."""
    freeze()


def pytest_runtest_teardown() -> None:
    """A library that a test loaded lives as long, too."""
    if len(sys.modules) > walked["modules"] + LIBRARY:
        gc.collect()  # what is garbage by now would be kept
        freeze()


def freeze() -> None:
    """Nothing that is alive now is walked again."""
    if "trio" in sys.modules:
        import hypothesis  # noqa: F401  it asks the collector who holds trio's generator
    gc.freeze()
    walked["modules"] = len(sys.modules)


TINY = Path(__file__).parent / "fixtures" / "tiny"

FEW = 12 if WHOLE else 6
"""New tokens of a pair of two layers each: it accepts few drafts, so that six are three and five rounds."""


@pytest.fixture(scope="session")
def tiny() -> Path:
    """The tiny pair's folder."""
    return TINY


@pytest.fixture(scope="session")
def full_golden(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Dump:
    """The default golden: every chat prompt, K = 4, 48 new tokens; or the one named by --parity-golden."""
    named = pytestconfig.getoption("--parity-golden")
    return Dump(named) if named else make_golden(tmp_path_factory.mktemp("full") / "golden")


@pytest.fixture(scope="session")
def remake_small_golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Dump]:
    """Dump a golden of two prompts and 12 new tokens to a folder; keywords change the request."""
    prompts = tmp_path_factory.mktemp("prompts") / "two.jsonl"
    prompts.write_text("\n".join(map(cut, (TINY / "prompts/chat.jsonl").read_text().splitlines()[:2])))
    return lambda out, **changes: make_golden(out, **dict(prompts=prompts, max_new_tokens=12) | changes)


@pytest.fixture(scope="session")
def once_for_all(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str) -> Callable[..., Path]:
    """The folder that `make(folder)` fills, by name: once for all workers, read only."""
    from filelock import FileLock

    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        out = base / f"{name}-{testrun_uid}"
        with FileLock(f"{out}.lock"):
            if not out.exists():
                make(out)
        return out

    return folder


@pytest.fixture(scope="session")
def small_golden(remake_small_golden, once_for_all) -> Dump:
    """Two short prompts, 12 new tokens: for what does not need many rounds."""
    return Dump(once_for_all("small", remake_small_golden))


@pytest.fixture(scope="session")
def two_layer_golden(remake_small_golden, once_for_all) -> Dump:
    """The small golden of a pair of two layers each: by night as well, for what counts decisions of these tokens."""

    def make(out: Path) -> None:
        remake_small_golden(out / "golden", max_new_tokens=FEW, **cut_pair(TINY, out))

    return Dump(once_for_all("shallow", make) / "golden")


@pytest.fixture(scope="session")
def shallow_golden(request) -> Dump:
    """The small golden of a pair of two layers each; of the tiny pair by night."""
    return request.getfixturevalue("small_golden" if WHOLE else "two_layer_golden")


@pytest.fixture(scope="session")
def sampled_golden(two_layer_golden, remake_small_golden, once_for_all) -> Dump:
    """The golden of two layers once more, its tokens drawn behind all processors."""
    model, settings = two_layer_golden.manifest.model, "temperature=1.5,top_k=20,top_p=0.9,min_p=0.02"
    pair = dict(target=Path(model.target.path), drafter=Path(model.drafter.path))
    return Dump(
        once_for_all("sampled", lambda out: remake_small_golden(out, sample=settings, max_new_tokens=FEW, **pair))
    )


@pytest.fixture(scope="session")
def paged_golden(remake_small_golden, once_for_all) -> Dump:
    """The small golden once more, its drafter attending to some pages of its cache."""

    def make(out: Path) -> None:
        pair = {} if WHOLE else cut_pair(TINY, out)
        remake_small_golden(out / "golden", max_new_tokens=FEW, partial_kv="1+2+1x8", **pair)

    return Dump(once_for_all("paged", make) / "golden")


@pytest.fixture(scope="session")
def quantised_golden(remake_small_golden, once_for_all) -> Dump:
    """The small golden of the pair of two layers each once more, with scales, its caches in fp8_e4m3."""

    def make(out: Path) -> None:
        from parity.fixtures.scaled import with_scales

        pair = cut_pair(TINY, out / "whole")
        scaled = {side: with_scales(folder, out / side, side) for side, folder in pair.items()}
        remake_small_golden(out / "golden", max_new_tokens=FEW, kv_cache="fp8_e4m3", **scaled)

    return Dump(once_for_all("quantised", make) / "golden")


@pytest.fixture(scope="session")
def three_layers(once_for_all) -> Path:
    """The tiny checkpoints with targets of three layers, for what runs devices and references; whole by night."""

    def make(out: Path) -> None:
        out.mkdir()
        cut_tiny(TINY, out)

    return TINY if WHOLE else once_for_all("three-layers", make)


@pytest.fixture(scope="session")
def family_golden(once_for_all) -> Callable[[str], TrustedGolden]:
    """The golden that a family's faults are judged by: two chat prompts, cut but for prompt lookup's, K = 4."""
    from parity.api import open_golden
    from parity.families import FAMILIES
    from parity.fault_choice import PROMPTS, TOKENS, small_golden

    def opened(family: str) -> TrustedGolden:
        def make(out: Path) -> None:
            out.mkdir()
            if WHOLE:
                small_golden(out, family=family)
                return
            words, tokens = (400, 16) if family == "n-gram" else (40, TOKENS[family])
            lines = {json.loads(line)["id"]: line for line in (TINY / "prompts/chat.jsonl").read_text().splitlines()}
            prompts = out / "prompts.jsonl"
            prompts.write_text("\n".join(cut(lines[name], words=words) for name in PROMPTS[family]))
            make_golden(out / "golden", prompts, tokens, **cut_target(TINY, out, FAMILIES[family].checkpoint))

        return open_golden(once_for_all(family, make) / "golden")

    return opened


@pytest.fixture(scope="session")
def chain_golden(family_golden) -> Dump:
    """EAGLE-3's, 12 new tokens."""
    return Dump(family_golden("eagle-3").folder)


@dataclass(frozen=True)
class Ended:
    """A command that ended: its exit code, output, and standard error but for the line that names the golden."""

    code: int
    out: str
    err: str
    golden: str = ""

    @property
    def last(self) -> str:
        """The last line of standard output."""
        return self.out.rstrip("\n").rsplit("\n", 1)[-1]


class Command:
    """`parity ARGUMENTS`, in this process, with $PARITY_HOME a fresh folder."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch):
        self.home, self.capsys, self.patch = home, capsys, patch
        patch.setenv("PARITY_HOME", str(home))

    def __call__(self, *arguments: object) -> Ended:
        from parity.cli import command

        self.patch.setattr("sys.argv", ["parity", *map(str, arguments)])
        self.capsys.readouterr()
        code = command()
        out, err = self.capsys.readouterr()
        lines = err.splitlines(keepends=True)
        told = [line for line in lines if line.startswith("golden: ")]
        return Ended(code, out, "".join(line for line in lines if line not in told), "".join(told).strip())


@pytest.fixture
def parity(tmp_path, capsys, monkeypatch) -> Command:
    """The command line, as a user meets it."""
    home = tmp_path / "home"
    home.mkdir()
    return Command(home, capsys, monkeypatch)


@pytest.fixture
def noted(monkeypatch, caplog) -> pytest.LogCaptureFixture:
    """The library's notes, also where a command ran in this process before, which would print them."""
    from parity import progress

    logger = logging.getLogger("parity")
    monkeypatch.setitem(progress._notes, "printed", False)
    monkeypatch.setattr(logger, "propagate", True)
    monkeypatch.setattr(logger, "handlers", [])
    return caplog


def make_golden(
    out: Path, prompts: Path = TINY / "prompts/chat.jsonl", max_new_tokens: int = 48, reference=None, **changes
) -> Dump:
    """Dump a golden of the tiny pair; `reference` is the module that does, the references' own by default."""
    import torch

    from parity.references import dump

    torch.set_num_threads(1)
    how = reference or dump
    options = dict(target=TINY / "target", drafter=TINY / "drafter", k=4, stages=()) | changes
    return Dump(how.dump_golden(how.Request(prompts=prompts, max_new_tokens=max_new_tokens, out=out, **options)))
