"""Every command that opens a golden says on standard error which one it took, before anything else goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.cli import cli
from parity.errors import UsageError
from tests.cli.test_empty_names import takers
from tests.meta.dumps import clean, write
from tests.meta.worlds import Size

OPENING = {
    path: f"--{parameter.name}" in parameter.opts
    for path, parameter in takers(cli)
    if parameter.name == "golden" and path != ("corroborate",)
}
"""By command, whether it is an option; `corroborate` takes folders alone, and has no default."""

BESIDE = {
    ("import",): ("NOWHERE", "--from", "files", "--out", "OUT"),
    ("endpoint",): ("http://127.0.0.1:9",),
    ("report",): ("RUN", "--policy", "no-such-policy"),
    ("engines",): ("--device", "no.such:device"),
    ("calibrate",): ("--device", "no.such:device"),
    ("faults", "run"): ("load-fc-chunks",),
}
"""What a command needs to come as far as its golden."""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory) -> Path:
    """The folder of a made-up golden and a run: no command comes further than to open them."""
    return write(clean(Size(prompts=(50,))), tmp_path_factory.mktemp("dumps"))[0].folder.parent


def no_reference(golden, progress):
    raise UsageError("nothing dumps it once more here")


def test_these_commands_open_a_golden():
    assert {" ".join(path) for path in OPENING} == {
        "calibrate", "diagnose", "diff", "endpoint", "engines", "faults run", "gate", "import", "reduce", "report",
        "run", "verify-golden",
    }  # fmt: skip


@pytest.mark.parametrize("path", OPENING, ids=" ".join)
def test_every_command_says_which_golden_it_took(path, parity, dumps, tmp_path, monkeypatch):
    monkeypatch.setattr("parity.api.verify_golden", no_reference)
    places = {"RUN": dumps / "run", "OUT": tmp_path / "out", "NOWHERE": tmp_path / "nowhere"}
    named = ("--golden", dumps / "golden") if OPENING[path] else (dumps / "golden",)
    found = parity(*path, *(places.get(word, word) for word in BESIDE.get(path, ())), *named)
    assert found.golden == f"golden: {dumps / 'golden'} (named)" and found.code == 2 and not found.out, found
