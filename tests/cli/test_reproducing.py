"""Commands that a reader copies: every argument comes back from a shell as it was."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np

from parity.cli import cli
from parity.compare import compare
from parity.compare.between import DeviceDifference
from parity.golden.store import Dump
from parity.policy import read_policy
from parity.reports.terminal import print_report
from parity.reproducing import command_line
from tests.meta.dumps import clean, write
from tests.meta.plants import OUT, values
from tests.meta.worlds import SHORT

ROOT = Path(__file__).parents[2]
ODD = "o d[x] ü'$(true)"


def test_a_shell_takes_a_command_apart_into_what_was_given():
    told = command_line("diff", Path(ODD), golden=ODD, k=3, policy="", prompts=None, stage=["drafter.*", "kv.*"])
    words = ["parity", "diff", ODD, "--golden", ODD, "-k", "3", "--stage", "drafter.*", "--stage", "kv.*"]
    assert shlex.split(told) == words
    assert command_line("gate", device="numpy,tp=2", max_new_tokens=4) == (
        "parity gate --device numpy,tp=2 --max-new-tokens 4"
    )


def test_a_dump_is_named_as_a_shell_reads_it():
    dump = object.__new__(Dump)
    dump.__dict__.update(folder=Path(ODD), asked=" --partial")
    assert shlex.split(dump.command) == [ODD, "--partial"]

    apart = object.__new__(DeviceDifference)
    apart.__dict__.update(folder=Path(ODD), other=dump, asked=dump.asked)
    assert shlex.split(apart.command) == [ODD, "--against", ODD, "--partial"]


def test_the_next_command_is_of_the_same_run_and_bounds(tmp_path, capsys):
    """A partial dump that is diagnosed as a whole one is blamed for the stages that it never had."""
    pair = clean(SHORT)
    values(np.negative, OUT)(pair)
    golden, run = write(pair, tmp_path)
    run.asked = " --partial"
    print_report(compare(golden, run, read_policy("pcc")))
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("next "))
    words = shlex.split(line)[1:]
    assert words[:4] == ["parity", "diagnose", str(run.folder), "--partial"] and words[-2:] == ["--policy", "pcc"]
    cli.commands["diagnose"].make_context("diagnose", words[2:])


def test_nothing_else_makes_commands():
    """Of what is given: an f-string would leave a folder's spaces to the shell."""
    made = re.compile(r'f"[^"]*\bparity (?:diff|gate|diagnose|bench|endpoint|reduce|verify-golden) [^"`]*\{')
    files = [file for room in ("parity", "reports") for file in (ROOT / room).rglob("*.py")]
    found = {
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in files
        for line in file.read_text().splitlines()
        if made.search(line) and ".command}" not in line and '", ' not in line and "UsageError" not in line
    }
    assert not found
