"""A command whose verdict was not printed never exits 0, whatever the device does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOSTILE = "tests.faults.hostile:ends"


def start(*arguments: object, **options) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "parity", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def said(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize("way", ["exit", "click", "base", "index", "closed"])
def test_what_a_device_raises_is_inconclusive_and_named(way, parity, shallow_golden, monkeypatch):
    if way == "closed":
        monkeypatch.setattr("sys.stdout", open(os.devnull, "w"))  # noqa: SIM115  not pytest's own
    found = parity("diff", "--golden", shallow_golden.folder, "--stage", "logits", "--device", f"{HOSTILE},way={way}")
    assert found.code == 3, found
    assert "draft on prompt" in found.err and "round 1" in found.err and found.err.count("\n") == 1
    assert way == "closed" or "tests/faults/" in found.err


@pytest.mark.parametrize("way", ["click_later", "context_later", "exit_later", "interrupt_later"])
def test_what_a_device_raises_in_the_comparison_is_no_pass(way, parity, shallow_golden):
    found = parity("diff", "--golden", shallow_golden.folder, "--stage", "logits", "--device", f"{HOSTILE},way={way}")
    if way == "interrupt_later":
        assert found.code == 130 and "interrupted" in found.err, found
        return
    assert found.code == 3 and "code of a device ended the process (" in found.err and "tests/faults/" in found.err, (
        found
    )


@pytest.mark.parametrize("way", ["exit", "base"])
def test_a_factory_that_ends_the_process_is_inconclusive(way, parity, shallow_golden):
    found = parity("run", "--golden", shallow_golden.folder, "--device", f"{HOSTILE},way={way},where=factory")
    assert found.code == 3 and "in its factory" in found.err and found.err.count("\n") == 1


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("os_exit", "before it had a result"),
        ("segfault", "SIGSEGV"),
        ("timer", "before it had a result"),
    ],
)
def test_a_device_that_ends_the_process_itself_is_inconclusive(way, words, shallow_golden, tmp_path):
    arguments = ("diff", "--golden", shallow_golden.folder, "--stage", "logits", "--device", f"{HOSTILE},way={way}")
    code, out, err = said(start(*arguments, env=os.environ | {"PARITY_HOME": str(tmp_path)}))
    assert code == 3 and words in err and "verdict" not in out


def test_what_a_device_leaves_behind_changes_nothing_of_a_verdict(shallow_golden, tmp_path):
    arguments = (
        "diff",
        "--golden",
        shallow_golden.folder,
        "--stage",
        "accept.*",
        "--device",
        f"{HOSTILE},way=thread+atexit+no_exit+stdout",
    )
    code, out, err = said(start(*arguments, env=os.environ | {"PARITY_HOME": str(tmp_path)}))
    assert code == 0 and "\nchained verdict: pass; " in out, err


@pytest.mark.parametrize(("where", "code"), [("inspect /nofile 2>/dev/full", 2), ("taps --layers 24 >&-", 2)])
def test_an_exit_code_is_what_it_is_where_nothing_can_be_printed(where, code):
    ended = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -m parity {where}', sys.executable], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == code, ended
    assert ">&-" not in where or ended.stderr.startswith("parity: standard output is closed")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_and_leaves_nothing(number, shallow_golden, tmp_path):
    device = f"{HOSTILE},way=hang,where=verify"
    process = subprocess.Popen(
        [sys.executable, "-m", "parity", "run", "--golden", str(shallow_golden.folder), "--device", device],
        cwd=ROOT, env=os.environ | {"PARITY_HOME": str(tmp_path)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("runs/.*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "nothing was left half-written" in err
    assert not list(tmp_path.glob("runs/*"))
