"""A progress bar on a terminal leaves results whole, and on standard output."""

from __future__ import annotations

import io
import re

import click
import pytest

from parity.cli.common import progress
from reports.dumps import console

ERASED = re.compile(r"\x1b\[2K")


class Terminal(io.StringIO):
    """What a terminal is sent."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("write", [lambda: console().print("RESULT"), lambda: click.echo("RESULT"), lambda: print("RESULT")])
def test_a_result_printed_beside_a_bar_gets_a_line_of_its_own(write, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with progress("gate") as bar:
        bar(1, 10, "stages")
        write()
    before, found, after = screen.getvalue().rpartition("RESULT")
    assert found and "gate" in before
    line = before.rpartition("\n")[2]
    assert not ERASED.split(line)[-1].strip("\r") and after.startswith(("\n", "\r\n"))


@pytest.mark.parametrize("write", [lambda: console().print("RESULT"), lambda: click.echo("RESULT"), lambda: print("RESULT")])
def test_a_result_goes_to_standard_output_whatever_the_bar_is_on(write, monkeypatch):
    out, err = io.StringIO(), Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    monkeypatch.setenv("TERM", "xterm")
    with progress("gate") as bar:
        bar(1, 10, "stages")
        write()
        click.echo("a note", err=True)
    assert out.getvalue().strip() == "RESULT" and "RESULT" not in err.getvalue() and "a note" in err.getvalue()
