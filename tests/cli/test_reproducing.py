"""Commands that a reader copies: every argument comes back from a shell as it was."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from parity.golden.store import Dump
from parity.reproducing import command_line

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
