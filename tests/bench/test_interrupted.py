"""Ctrl-C ends a bench: in every verb, in a warm-up or a timed run, and where a device's own code swallowed it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from tempfile import TemporaryDirectory

import pytest

from parity.bench.measure import run_bench
from parity.endings import ENDING, Terminated, interrupting
from parity.guard import guard
from parity.guarded_call import call_guarded
from parity.references.vllm_capture import serving
from tests.bench.fakes import FakePlain, PlainLoop, Ticks, request

CALLS = ("prefill", "draft", "verify", "commit", "decode_plain", "speculate", "describe")


@pytest.mark.parametrize("nth", [1, 5])
@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_in_any_call_of_a_device_ends_the_bench(call, nth, tiny):
    """The first call is of the watched run or the warm-up, the fifth of a later one."""
    ticks, calls = Ticks(), []

    def make(k):
        device = PlainLoop(FakePlain(ticks, k)) if call == "speculate" else FakePlain(ticks, k)
        clean = getattr(device, call)

        def interrupted(*given):
            calls.append(call)
            if len(calls) == nth:
                raise KeyboardInterrupt
            return clean(*given)

        setattr(device, call, interrupted)
        return guard(device, "fake")

    with pytest.raises(KeyboardInterrupt):
        run_bench(request(tiny, make, ticks))
    assert len(calls) == nth


class Swallows:
    """Code of a device that lets nothing out, as a bare `except` does, a finalizer, or a callback of a compiler."""

    def __init__(self, way):
        self.way = way

    def __call__(self):
        if self.way == "a finalizer":
            _Dying()
            return
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException:
            if self.way == "another error":
                raise ValueError("something else") from None


class _Dying:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("way", ["a bare except", "a finalizer", "another error"])
def test_an_interrupt_that_a_device_swallowed_ends_the_command_behind_its_call(way):
    before = {one: signal.getsignal(one) for one in ENDING}
    signal.signal(signal.SIGINT, interrupting)
    try:
        with pytest.raises(Terminated) as ended:
            call_guarded("fake", "verify", Swallows(way))
        assert ended.value.number == signal.SIGINT
        assert call_guarded("fake", "verify", lambda: 7) == 7  # it is over with that
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


SCRIPT = """
import signal, sys
from parity.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background would ignore it
sys.argv = ["parity", "bench", *sys.argv[1:]]
main()
"""


def test_the_command_ends_by_one_interrupt_that_its_device_swallowed(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "one", "ids": [1, 2, 3]}\n')
    asked = ["--device", "tests.bench.fakes:swallowing", "--prompts", prompts, "-k", "4", "--repeats", "1"]
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, asked)], capture_output=True, text=True, timeout=60, cwd=os.getcwd()
    )
    assert ended.returncode == 130 and "interrupted; nothing was left half-written" in ended.stderr, ended
    assert not ended.stdout


def test_an_engine_that_does_not_end_when_asked_is_ended(monkeypatch):
    """Who pressed Ctrl-C waits for it, and presses in vain from then on."""
    monkeypatch.setattr(serving, "PATIENCE", 0.2)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(20)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process, began = subprocess.Popen([sys.executable, "-c", stubborn], **pipes), time.monotonic()
    assert process.stdout.readline() == "\n"
    serving._end(process, TemporaryDirectory())
    assert process.returncode == -signal.SIGKILL and time.monotonic() - began < 10
