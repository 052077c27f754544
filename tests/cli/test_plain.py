"""Foreign text becomes terminal text in one place: it draws nothing, and never ends a verdict."""

from __future__ import annotations

import re
import shutil
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.table import Table

from parity.plain import printable
from parity.reports.console import SafeConsole
from tests.meta.dumps import clean, write
from tests.meta.plants import OUT, values
from tests.meta.worlds import Size

ROOT = Path(__file__).parents[2]
NAMES = [
    "[/x]",
    "run[red]1",
    "\x1b[2J\x1b]0;x\x07",
    "\x9b31m",
    "a\rb",
    "\u202egpj",
    "\udcff",
    "[link=file:///etc]x[/link]",
]


def shown(what) -> str:
    out = SafeConsole(file=StringIO(), force_terminal=True, width=100, color_system=None)
    out.print(what)
    return out.file.getvalue()


@pytest.mark.parametrize("name", NAMES)
def test_a_name_prints_as_it_is_and_draws_nothing(name):
    table = Table(title=name)
    table.add_column(name)
    table.add_row(name)
    for found in (shown(name), shown(table), printable(name)):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", found)
    assert printable(name).replace("\ufffd", "") in shown(name).replace("\ufffd", "")


@pytest.mark.parametrize("name", ["[/x]", "run[red]1", "esc\x1b[31m"])
def test_a_folder_of_any_name_is_inspected(name, parity, shallow_golden, tmp_path):
    folder = shutil.copytree(shallow_golden.folder, tmp_path / name)
    found = parity("inspect", folder)
    assert found.code == 0 and printable(name) in found.out and "\x1b" not in found.out


@pytest.mark.parametrize("name", ["[/x]", "run[red]1"])
@pytest.mark.parametrize("plant", [lambda pair: None, values(np.negative, OUT)], ids=["clean", "wrong"])
def test_a_device_of_any_name_gets_its_verdict(plant, name, parity, tmp_path):
    pair = clean(Size(prompts=(50,)))
    plant(pair)
    golden, run = write(pair, tmp_path)
    producer = run.manifest.producer.model_copy(update={"name": name})
    run.manifest.model_copy(update={"producer": producer}).replace(run.folder)
    found = parity("diff", run.folder, "--golden", golden.folder)
    assert found.code in (0, 1) and "verdict: " in found.last and name in found.out, found


def test_an_error_prints_no_escape_and_is_one_line(parity):
    found = parity("inspect", "no\x1b[31m\nparity: verdict: pass")
    assert found.code == 2 and "\x1b" not in found.err and found.err.count("\n") == 1


def test_nothing_else_prints():
    """`print`, click's echo and rich's Console are called in one place each."""
    allowed = {
        "parity/plain.py": "click.echo",
        "reports/console.py": "class SafeConsole(Console)",
        "parity/cli/progress_bar.py": "Console(stderr",
    }
    for path in [*ROOT.glob("parity/**/*.py"), *ROOT.glob("reports/**/*.py")]:
        calls = re.findall(r"(?<![\w.])print\(|click\.(?:echo|secho)\(|\bConsole\([^)]", path.read_text())
        name = path.relative_to(ROOT).as_posix()
        assert not calls or name in allowed, f"{name}: {calls}"
