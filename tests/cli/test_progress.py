"""A progress bar on a terminal leaves results whole, and on standard output."""

from __future__ import annotations

import io
import re

import click
import pytest

from parity.cli.progress_bar import progress
from parity.progress import note, print_notes
from parity.reports.console import console

ERASED = re.compile(r"\x1b\[2K")


class Terminal(io.StringIO):
    """What a terminal is sent."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(
    params=[lambda: console().print("RESULT"), lambda: click.echo("RESULT"), lambda: print("RESULT")],
    ids=["rich", "click", "print"],
)
def written(request, monkeypatch):
    """What is on the two streams once a result was written beside a bar, and a note."""

    def write(out: io.StringIO, err: io.StringIO) -> tuple[str, str]:
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", err)
        monkeypatch.setenv("TERM", "xterm")
        with progress("gate") as bar:
            bar(1, 10, "stages")
            request.param()
            click.echo("a note", err=True)
        return out.getvalue(), err.getvalue()

    return write


def test_a_result_printed_beside_a_bar_gets_a_line_of_its_own(written):
    screen = Terminal()
    before, found, after = written(screen, screen)[0].rpartition("RESULT")
    assert found and "gate" in before
    line = before.rpartition("\n")[2]
    assert not ERASED.split(line)[-1].strip("\r") and after.startswith(("\n", "\r\n"))


def test_a_result_goes_to_standard_output_whatever_the_bar_is_on(written):
    out, err = written(io.StringIO(), Terminal())
    assert out.strip() == "RESULT" and "RESULT" not in err and "a note" in err


def test_a_note_is_a_warning_of_a_logger_and_a_line_once_the_command_line_runs(noted, capsys):
    note("not known")
    assert noted.messages == ["not known"] and capsys.readouterr().err == ""
    print_notes()
    note("still not known")
    note("nor this")
    assert len(noted.messages) == 1 and capsys.readouterr().err == "parity: still not known\nparity: nor this\n"


def test_a_log_gets_a_line_where_the_last_one_is_a_minute_ago(monkeypatch, capsys):
    now = iter([0.0, 59.0, 61.0, 120.0, 121.0])
    monkeypatch.setattr("parity.cli.progress_bar.monotonic", lambda: next(now))
    with progress("diagnose numpy") as tell:
        for done, name in enumerate(["window", "gate verify", "gate \x1b[31mloops", ""]):
            tell(done, 10, name)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "parity: diagnose numpy 1/10, 61 s: gate verify"
    assert second == "parity: diagnose numpy 3/10, 121 s"
