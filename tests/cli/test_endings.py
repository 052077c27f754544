"""How the command ends where somebody else ends it: a pipe that nobody reads, a signal before anything is begun."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from parity.bundled import tiny
from parity.endings import ENDING, interrupting
from parity.errors import DeviceEnded
from parity.guarded_call import call_guarded


def ended(*arguments, code=None, **options):
    how = ["-c", code] if code else ["-m", "parity"]
    return subprocess.run([sys.executable, *how, *map(str, arguments)], timeout=60, **options)


@pytest.fixture
def unread_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize(("off", "code"), [(0.0, 0), (1.0, 1)])
def test_a_pipe_that_nobody_reads_leaves_the_verdict(off, code, unread_pipe, tmp_path):
    rows = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    np.save(tmp_path / "a.npy", rows + np.float32(off))
    np.save(tmp_path / "b.npy", rows)
    done = ended("diff", tmp_path / "a.npy", tmp_path / "b.npy", stdout=unread_pipe, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (code, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is Linux's")
@pytest.mark.parametrize("command", [("policy",), ("inspect", str(tiny("target").parents[1] / "eagle"))])
def test_a_full_disk_behind_standard_output_is_named(command):
    """One is printed by click, the other by rich."""
    with open("/dev/full", "w") as full:
        done = ended(*command, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (2, b"parity: standard output: No space left on device\n")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EMFILE, "Too many open files: `ulimit -n` shows how many this process may have"),
        (errno.EIO, "Input/output error, in a file without a name (`parity --debug …` shows where)"),
    ],
)
def test_a_file_without_a_name_is_none(number, said, parity, monkeypatch):
    def fails(*given):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("parity.schedule.scheduled", fails)
    monkeypatch.setattr("parity.golden.asked.scheduled", fails)
    done = parity("dump-golden", "--plan")
    assert (done.code, done.err) == (2, f"parity: {said}\n")


def test_a_command_whose_folder_was_removed_says_so(parity, monkeypatch, tmp_path):
    def fails(*given):
        os.getcwd()

    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr("parity.schedule.scheduled", fails)
    monkeypatch.setattr("parity.golden.asked.scheduled", fails)
    done = parity("dump-golden", "--plan")
    assert (done.code, done.err) == (2, "parity: the folder that this command was started in is not there any more\n")


KILLED = """
import os, signal, sys
from parity.cli import supervised

sys.argv = ["parity", *sys.argv[1:]]
supervised.supervise(lambda: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("diff --device x:y", "by a device, most likely; `parity gate` and --isolate run one in a process of its own"),
        ("diff --device x:y --isolate", "by a device that reaches out of the process of its own"),
        ("gate --device x:y", "by a device that reaches out of the process of its own"),
        ("nightly m.toml", "by a device that reaches out of the process of its own"),
        ("--debug gate --no-isolate", "by a device, most likely; `parity gate` and --isolate run one"),
    ],
)
def test_what_ended_a_command_is_told_by_how_its_device_ran(arguments, said):
    done = ended(*arguments.split(), code=KILLED, capture_output=True, text=True)
    assert done.returncode == 3 and "before it had a result: " + said in done.stderr


@pytest.mark.parametrize(("command", "code"), [("policy", 0), ("--help", 128 + signal.SIGPIPE)])
def test_a_pipe_that_nobody_reads_is_never_a_failed_gate(command, code, unread_pipe):
    done = ended(command, stdout=unread_pipe, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (code, b"")


IMPORTING = """
import signal, sys
import parity.__main__

class Interrupting:
    def find_spec(self, name, *rest):
        if name == "parity.cli":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background would ignore it
parity.__main__.main()
"""
FORKED = """
import os, signal
from parity.cli import supervised

clean = supervised._unwind_on_signals
def unwind():
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getppid(), signal.SIGINT)
    clean()

supervised._unwind_on_signals = unwind
signal.signal(signal.SIGINT, signal.default_int_handler)
supervised.supervise(lambda: 0)
"""


@pytest.mark.parametrize("code", [IMPORTING, FORKED], ids=["importing", "forked"])
def test_an_interrupt_before_the_command_begins_is_one_sentence(code):
    done = ended(code=code, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "parity: interrupted; nothing was left half-written\n")


def _interrupts():
    raise KeyboardInterrupt


@pytest.mark.parametrize("handler", [interrupting, signal.SIG_IGN, signal.default_int_handler])
def test_a_keyboard_interrupt_of_the_devices_own_is_told_from_a_signals(handler):
    """Python's own handler raises the same class: there it is taken for a signal's."""
    before = {one: signal.getsignal(one) for one in ENDING}
    signal.signal(signal.SIGINT, handler)
    try:
        expected = KeyboardInterrupt if handler is signal.default_int_handler else DeviceEnded
        with pytest.raises(expected) as raised:
            call_guarded("mine", "verify", _interrupts)
        assert expected is KeyboardInterrupt or "raised KeyboardInterrupt" in str(raised.value)
        assert expected is KeyboardInterrupt or "test_endings.py:" in str(raised.value)
    finally:
        for one, kept in before.items():
            signal.signal(one, kept)
