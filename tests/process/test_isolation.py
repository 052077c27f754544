"""A device in a process of its own: the same bits, and whatever it does costs one check its evidence."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.api import run_device
from parity.errors import DeviceEnded, DeviceFailed, Inconclusive, NotOffered, UsageError
from parity.factories import Factory
from parity.gates.rollback.baseline import InjectedError
from parity.golden.views import PromptSlice
from parity.isolation import IsolatedFactory, ProcessLimits, process
from parity.isolation.device import _KINDS
from parity.isolation.wire import DTYPES, Malformed, packed, unpacked
from parity.seam import Description, Poisonable
from tests.sample import WHOLE

ECHO = "tests.process.echo:echo"
ROOT = Path(__file__).parents[2]


def nobody(stage, value):
    return value


class Tap:
    """Changes one stage, sees ranks and rows."""

    def __call__(self, stage, value):
        if stage == "raises":
            raise InjectedError("on purpose")
        return value + value if stage == "changed" else value

    def ranks(self, stage, shards, sharding):
        return [shards[1], shards[0]]

    def rows(self, stage, value, first, total):
        return value[:first] if total == 4 else value


def isolated(way="", **options):
    named = ",".join([ECHO, *(f"{key}={value}" for key, value in {"way": way, **options}.items() if value)])
    return IsolatedFactory(named, Path("t"), Path("d"), 4, ProcessLimits(time=60))


def test_a_run_has_the_same_bits_in_a_process_of_its_own(shallow_golden, tmp_path):
    case = PromptSlice(shallow_golden, 0, 2)
    runs = [
        run_device(case, "numpy,tp=2", "chained", out=tmp_path / name, limits=limits)
        for name, limits in (("here", None), ("there", ProcessLimits()))
    ]
    made_by = {"modules", "sources", "source_digest"}  # this process may have imported more than a device needs
    here, there = (
        run.manifest.model_dump(exclude={"created": True, "digest": True, "producer": made_by}) for run in runs
    )
    assert here == there and set(runs[1].manifest.producer.modules) <= set(runs[0].manifest.producer.modules)


def test_what_travels_to_a_tap_and_back_is_what_it_was():
    here, there = (make(precision="bfloat16") for make in (Factory(ECHO, Path("t"), Path("d"), 4), isolated()))
    assert here.describe() == there.describe() and there.describe().versions == {"numpy": "2"}
    for tap in (Tap(), nobody):
        mine, theirs = (one.verify(np.arange(3), tap) for one in (here, there))
        assert mine[:2] == theirs[:2] == [True, "bfloat16"] and mine[3] == theirs[3]
        for one, other in ((mine[2], theirs[2]), (mine[4], theirs[4]), (mine[7], theirs[7])):
            assert one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    mine, theirs = (one.verify(np.arange(3), Tap()) for one in (here, there))
    assert [one.tolist() for one in mine[5]] == [one.tolist() for one in theirs[5]] and mine[6].tolist() == theirs[
        6
    ].tolist()
    assert there.prefill([1, 2], 3, nobody) == 6 and isinstance(there.prefill((1,), 1, nobody), np.int64)


@pytest.mark.parametrize(("way", "seen"), [("", False), ("references", True)])
def test_what_a_device_imports_by_a_name_put_together_is_seen_in_its_process(way, seen):
    device = isolated(way)(precision="float32")
    with suppress(DeviceFailed):
        device.prefill([1, 2], 3, nobody)
    modules = device.reached_modules((), ECHO, ("parity.references.hf_target",))
    assert ("parity.references.kv_cache" in modules) is seen


def test_optional_protocols_are_there_where_the_device_has_them():
    assert not isinstance(isolated()(precision="float32"), Poisonable)
    make = isolated(poisons=1)
    device = make(precision="float32")
    assert isinstance(device, Poisonable) and device.poison(float("nan")) is None
    turned = make.rotary()(Path("f"), "target", np.ones((2, 1, 4), np.float32), np.array([3, 4]))
    assert turned.dtype == np.float32 and turned[:, 0, 0].tolist() == [3, 4]


@pytest.mark.parametrize(
    "make", [isolated, lambda way="": Factory(f"{ECHO},way={way}" if way else ECHO, Path("t"), Path("d"), 4)]
)
def test_an_error_of_the_tap_comes_back_as_it_was(make):
    with pytest.raises(InjectedError, match="on purpose"):
        make()(precision="float32").commit(np.arange(1), np.arange(2), Tap())
    assert make("swallows")(precision="float32").commit(np.arange(1), np.arange(2), Tap()).tolist() == [1]


@pytest.mark.parametrize("make", [isolated, lambda way: Factory(f"{ECHO},way={way}", Path("t"), Path("d"), 4)])
@pytest.mark.parametrize(
    ("way", "kind", "words"),
    [
        ("exit", DeviceEnded, "SystemExit"),
        ("index", DeviceFailed, "ways.py:"),
        ("sly", UsageError, "made up"),
        ("usage", UsageError, "does not fit"),
        ("absent", NotOffered, "has none"),
        ("value", DeviceFailed, "512 positions"),
    ],
)
def test_an_error_is_the_same_on_both_sides(make, way, kind, words):
    with pytest.raises(kind, match=words) as found:
        make(way)(precision="float32").prefill([1], 1, nobody)
    assert type(found.value) is kind and found.value.exit_code in (2, 3)
    assert getattr(found.value, "refuses", None) in (None, way == "value")


@pytest.mark.parametrize(
    ("way", "limits", "words"),
    [
        ("os_exit", ProcessLimits(60), "exit code 0"),
        ("kill", ProcessLimits(60), "SIGKILL"),
        ("segfault", ProcessLimits(60), "SIGSEGV"),
        ("timer", ProcessLimits(60), "exit code 0"),
        ("hang", ProcessLimits(1), "within 1 s"),
        ("memory", ProcessLimits(60, 1 << 28), "more than 0.2"),
        ("worker", ProcessLimits(20, 1 << 28), "more than 0.2"),
        ("nonsense", ProcessLimits(60), "no message"),
    ],
)
def test_a_process_that_ends_or_is_ended_is_a_sentence_and_the_next_one_runs(way, limits, words):
    make = isolated(way)
    device = make(precision="float32")
    before, make.process.limits = make.process.limits, limits  # the start of a process is no call that is tried here
    with pytest.raises(DeviceEnded, match=words) as found:
        device.prefill([1], 1, nobody)
    make.process.limits = before
    assert "in prefill" in str(found.value) and device.process_ended
    with pytest.raises(DeviceEnded, match="ended already"):
        device.draft(nobody)
    assert make(precision="float32").draft(nobody).tolist() == [0, 1, 2, 3]


def test_a_description_that_cannot_be_sent_is_an_error_and_the_process_lives():
    device = isolated("opaque")(precision="float32")
    with pytest.raises(DeviceFailed, match=r"in describe.*object is neither an array nor a number"):
        device.describe()
    assert device.draft(nobody).tolist() == [0, 1, 2, 3]


def test_a_message_has_one_limit_for_all_its_arrays(monkeypatch):
    message = b"".join(packed([np.ones(8, np.uint8)] * 3))
    monkeypatch.setattr("parity.isolation.wire.MOST_BYTES", 23)
    with pytest.raises(Malformed, match="beyond every size"):
        unpacked(_reader(message))


def test_what_is_no_array_is_an_error_of_the_device():
    with pytest.raises(Inconclusive, match="type object, which is neither an array nor a list"):
        isolated("object")(precision="float32").draft(nobody)


def test_a_dead_device_leaves_one_gate_without_evidence(parity, shallow_golden):
    device = "tests.faults.hostile:ends,way=os_exit,where=verify"
    found = parity(
        "gate", "--golden", shallow_golden.folder, "--device", device, "--only", "verify", "--only", "provenance"
    )
    assert found.code == 3 and "ended its process (exit code 0) in verify" in found.out
    assert "pass         provenance" in found.out


def test_limits_go_with_a_process_of_its_own(parity, shallow_golden):
    assert "--isolate" in parity("diff", "--golden", shallow_golden.folder, "--time-limit", 5).err


@pytest.mark.parametrize("option", ["--time-limit", "--memory-limit"])
@pytest.mark.parametrize("number", ["nan", "inf", "1e300", "0"])
def test_a_limit_that_limits_nothing_is_refused(option, number, parity):
    found = parity("diff", "--isolate", option, number)
    assert found.code == 2 and option in found.err and found.err.count("\n") == 1, found


def test_a_device_that_is_just_sending_is_ended_before_its_socket_is_closed(monkeypatch):
    """Otherwise it meets a broken pipe, and a traceback stands in what an interrupted command prints."""
    ours, theirs = socket.socketpair()
    (ended := subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)).wait()
    watcher = process._watcher(ended.pid)
    open_then = []
    monkeypatch.setattr(process.os, "killpg", lambda number, signal: open_then.append(ours.fileno() >= 0))
    process._end(ended, watcher, ours)
    assert open_then == [True] and ours.fileno() < 0
    theirs.close()


@pytest.mark.parametrize("ends", ["kill", "os_exit"])
def test_no_device_and_nothing_that_it_started_outlives_its_command(ends):
    code = (
        "from pathlib import Path\nfrom parity.isolation import IsolatedFactory, ProcessLimits\n"
        "from tests.faults.ways import WAYS\n"
        f"factory = IsolatedFactory({ECHO + ',way=child'!r}, Path('t'), Path('d'), 4, ProcessLimits())\n"
        "device = factory(precision='float32')\n"
        "print(device._process._process.pid, device.prefill([1], 1, lambda stage, value: value), flush=True)\n"
        f"WAYS[{ends!r}]()"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    left = [Path(f"/proc/{number}") for number in found.stdout.split()]
    deadline = time.monotonic() + 30
    while any(map(_runs, left)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(left) == 2 and not any(map(_runs, left))


def _runs(process: Path) -> bool:
    """Whether there is one, and it is no corpse that waits to be buried."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _reader(data: bytes):
    left = memoryview(data)

    def read(buffer):
        nonlocal left
        if len(left) < len(buffer):
            raise Malformed("short")
        buffer[:], left = left[: len(buffer)], left[len(buffer) :]

    return read


@given(
    st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 3), max_size=4), st.binary(min_size=2000, max_size=2000)
)
@settings(max_examples=40, deadline=None)
def test_every_array_travels_bit_for_bit(name, shape, noise):
    dtype = DTYPES[name]
    array = np.frombuffer(noise, np.uint8, count=dtype.itemsize * int(np.prod(shape))).view(dtype).reshape(shape)
    ((back, scalar),) = unpacked(_reader(b"".join(packed([(array, np.float32(2))]))))
    assert back.dtype == array.dtype and back.shape == array.shape and back.tobytes() == array.tobytes() and scalar == 2


@given(st.data())
@settings(max_examples=150 if WHOLE else 30, deadline=None)
def test_a_damaged_message_is_refused(data):
    whole = bytearray(b"".join(packed({"is": "tap", "given": [np.ones((2, 2), ml_dtypes.bfloat16), (1, "x")]})))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(Malformed):
        unpacked(_reader(bytes(whole[: data.draw(st.integers(0, len(whole)))])))


def test_every_field_of_a_description_crosses():
    assert _KINDS.keys() == {field.name for field in fields(Description)}
