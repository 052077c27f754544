"""What a device's code does to the process around it is undone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from parity.errors import DeviceFailed, UsageError
from parity.guard import guard
from parity.guarded_call import call_guarded, watch_threads
from parity.policy import read_policy
from parity.seam import Description


class Handing:
    """A device whose `draft` returns this."""

    def __init__(self, value):
        self.draft = lambda tap: value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.broadcast_to(np.int64(1), 2**40), "1099511627776 values as the tokens of one round"),
        (iter(int, 1), "type callable_iterator, which is neither an array nor a list"),
        (None, "type NoneType"),
    ],
)
def test_an_endless_answer_is_an_error_before_it_is_read(value, words):
    with pytest.raises(DeviceFailed, match=words):
        guard(Handing(value), "handing").draft(None)


def test_tokens_are_handed_on_as_they_are_and_a_list_of_them_as_an_array():
    """Gates read `.tolist()`: a device that returns a list passed everywhere but there."""
    value = np.arange(3)
    assert guard(Handing(value), "handing").draft(None) is value
    for listed in ([1, 2], (1, 2), []):
        found = guard(Handing(listed), "handing").draft(None)
        assert found.dtype == np.int64 and found.tolist() == list(listed)
    odd = [1, [2]]
    assert guard(Handing(odd), "handing").draft(None) is odd


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_ends_a_thread_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    watch_threads()
    thread = threading.Thread(target=lambda: [][1])
    thread.start()
    thread.join()
    said = capsys.readouterr().err
    assert (
        said.startswith("parity: a thread of the device raised IndexError: list index out of range (")
        and said.count("\n") == 1
    )


def test_whoever_looks_after_threads_still_does(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", print)
    watch_threads()
    assert threading.excepthook is print


def test_a_device_that_changes_the_folder_leaves_parity_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call_guarded("roaming", "prefill", os.chdir, "/")
    assert Path.cwd() == tmp_path


def test_a_path_that_a_device_clears_is_there_again_and_what_it_adds_stays():
    before = list(sys.path)

    def clear():
        sys.path[:] = ["its own"]

    try:
        call_guarded("device", "draft", clear)
        assert sys.path == ["its own", *before]
    finally:
        sys.path = before


@pytest.mark.parametrize("room", ["parity.device.kernels", "parity.references.loop"])
def test_an_exception_of_a_device_or_reference_is_not_the_instruments(room):
    error = type("Broken", (Exception,), {"__module__": room})("no rows")

    def verify():
        raise error

    with pytest.raises(DeviceFailed, match="no rows"):
        call_guarded("bundled", "verify", verify)


def raises(error):
    raise error


def refused_by_a_tap(_tap):
    read_policy(Path("/none.toml"), "bfloat16")  # code of parity that a device's verb runs, as its tap is


@pytest.mark.parametrize("verb", ["draft", "verify_batch", "commit"])
def test_a_device_that_blames_its_use_in_a_round_has_failed(verb):
    with pytest.raises(
        DeviceFailed, match=f"device blames failed in {verb}: UsageError: the sequence has ended"
    ) as found:
        call_guarded("blames", verb, raises, UsageError("the sequence has ended"))
    assert found.value.refuses and found.value.exit_code == 3


@pytest.mark.parametrize("call", ["its factory", "describe", "prefill"])
def test_a_device_may_refuse_what_it_is_asked_for(call):
    with pytest.raises(UsageError, match="too long"):
        call_guarded("refuses", call, raises, UsageError("the prompt is too long"))


def test_what_a_tap_refuses_in_a_round_stays_as_it_is():
    with pytest.raises(UsageError):
        call_guarded("taps", "draft", refused_by_a_tap, None)


FORKING = """
import os
from parity.guarded_call import call_guarded

child = call_guarded("forking", "verify", os.fork)
print("parent" if child else "child", flush=True)
if child:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_a_device_forks_hands_nothing_back():
    """It went on with the command, and its verdict stood beside its parent's."""
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["parent", "1"]


def test_a_description_that_changes_is_no_description():
    """The run was judged by what it said last."""
    says = iter([("bfloat16", ("fresh",)), ("bfloat16", ("compiled",)), ("float32", ())])

    class Changing:
        def describe(self):
            precision, notes = next(says)
            return Description("changing", precision, 1, 1, 4, 100, notes=notes)

    device = guard(Changing(), "changing")
    assert device.describe().notes != device.describe().notes
    with pytest.raises(DeviceFailed, match="it described its precision as 'bfloat16', and now as 'float32'"):
        device.describe()


def test_what_a_device_does_to_the_tokens_that_it_is_handed_is_its_own_affair():
    """The drafts that it zeroed behind its verify were compared with the next verb's."""

    class Reusing:
        def verify(self, drafts, tap):
            tokens = np.append(drafts, 9)
            drafts[:] = 0
            return tokens

        def commit(self, drafts, tokens, tap):
            fresh = tokens.copy()
            drafts[:], tokens[:] = 0, 0
            return fresh

    device, drafts = guard(Reusing(), "reusing"), np.array([7, 8])
    tokens = device.verify(drafts, None)
    assert device.commit(drafts, tokens, None).tolist() == tokens.tolist() == [7, 8, 9] and drafts.tolist() == [7, 8]
