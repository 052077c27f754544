"""What is half-written is nobody's evidence, and does not stay."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parity import partial
from parity.errors import UsageError
from parity.golden.choice import newest
from parity.golden.writer import DumpWriter
from parity.partial import partial_file, partial_folder, scratch, sweep, write_whole


@pytest.fixture
def killed():
    """Has a process begin to write and kills it; the code gets the folder as its argument."""

    def kill(code: str, folder: Path) -> list[Path]:
        head = "import sys, time\nfrom pathlib import Path\nfrom parity.partial import *\nfolder = Path(sys.argv[1])\n"
        process = subprocess.Popen([sys.executable, "-c", head + code, str(folder)])
        while not (left := list(folder.glob(".*.partial"))) and process.poll() is None:
            time.sleep(0.01)
        time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        return left

    return kill


def test_a_torn_dump_is_never_the_newest(tmp_path):
    for name in ("whole", ".whole.123.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
        os.utime(tmp_path / name / "manifest.json", (1, 1 + name.startswith(".")))
    with pytest.raises(UsageError, match="/whole/manifest"):  # the one it reads; this one is empty
        newest(tmp_path)


@pytest.mark.parametrize(
    "code",
    [
        "with partial_folder(folder / 'dump') as made: time.sleep(60)",
        "with partial_file(folder / 'file') as made: time.sleep(60)",
    ],
)
def test_what_a_killed_writer_left_is_removed_by_the_next_one(code, killed, tmp_path):
    left = killed(code, tmp_path)
    assert left and all(path.exists() for path in left)
    write_whole(tmp_path / "other", "")
    assert not any(path.exists() for path in left) and os.listdir(tmp_path) == ["other"]


def test_writers_leave_each_other_and_what_is_not_theirs_alone(tmp_path):
    (tmp_path / ".notes.partial").write_text("a user's own")
    with (
        partial_folder(tmp_path / "dump") as one,
        partial_folder(tmp_path / "dump") as two,
        partial_file(tmp_path / "file") as three,
    ):
        three.write_text("x")
        with pytest.raises(UsageError), DumpWriter(tmp_path):
            pass
        assert one.exists() and two.exists() and three.exists() and one != two
    assert sorted(os.listdir(tmp_path)) == [".notes.partial", "file"]


def test_what_only_has_the_name_of_a_left_over_stays_and_the_others_go(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    os.mkfifo(".pipe.1.partial")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(".socket.1.partial")
    Path(".link.1.partial").symlink_to("/dev/zero")
    for number in range(5):
        Path(f".file.{number}.partial").touch()
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for the pipe"))
    signal.alarm(5)
    sweep(tmp_path)
    signal.alarm(0), signal.signal(signal.SIGALRM, before)
    assert sorted(os.listdir()) == [".link.1.partial", ".pipe.1.partial", ".socket.1.partial"]


@pytest.mark.parametrize("write", [lambda out: write_whole(out, "whole"), lambda out: partial_folder(out).__enter__()])
def test_what_another_sweeps_before_it_is_locked_is_begun_again(write, tmp_path, monkeypatch):
    lock, asked = partial.lock, []

    def late(file):
        asked.append(file)
        if len(asked) == 1:
            (begun,) = tmp_path.glob(".*.partial")
            begun.rmdir() if begun.is_dir() else begun.unlink()
            return False
        return lock(file)

    monkeypatch.setattr(partial, "lock", late)
    write(tmp_path / "out")
    assert len(asked) == 2


def test_scratch_of_a_killed_command_is_removed_by_the_next_one(killed, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = killed("import tempfile; tempfile.tempdir = str(folder)\nwith scratch('gate'): time.sleep(60)", tmp_path)
    with scratch("diff") as folder:
        assert folder.exists() and not left[0].exists()
    assert not os.listdir(tmp_path)


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    file, link = tmp_path / "report.json", tmp_path / "link"
    file.write_text("before")
    link.symlink_to(file)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr("os.replace", full), patch.setattr(Path, "replace", lambda self, other: full(0))
        write_whole(file, "after")
    assert file.read_text() == "before" and sorted(os.listdir(tmp_path)) == ["link", "report.json"]
    write_whole(link, "after")
    assert link.is_symlink() and file.read_text() == "after"


def test_json_to_a_device_is_written_as_it_is(parity):
    found = parity("taps", "--layers", "24", "--json", "/dev/null")
    assert found.code == 0 and Path("/dev/null").is_char_device()


def test_json_that_cannot_be_written_is_a_sentence(parity, tmp_path):
    found = parity("taps", "--layers", "24", "--json", tmp_path / "no" / "file.json")
    assert found.code == 2 and "--json" in found.err and found.err.count("\n") == 1


def test_json_is_whole(parity, tmp_path):
    assert parity("taps", "--layers", "24", "--json", tmp_path / "file.json").code == 0
    assert json.loads((tmp_path / "file.json").read_text())["vllm"] == [2, 12, 21]


def test_what_cannot_be_written_is_named_as_the_user_named_it():
    for writing in (partial_folder, partial_file):
        with pytest.raises(OSError) as refused, writing(Path("/proc/x")):
            pass
        assert refused.value.filename == "/proc/x"


def test_a_full_disk_is_told_with_the_name_of_the_file_that_did_not_fit(tmp_path):
    """`--suggest-map` and `export` spoke of a file without a name: a write that fails knows none."""
    out = tmp_path / "map.toml"
    with pytest.raises(OSError, match="No space left") as raised, partial_file(out):
        Path("/dev/full").write_text("x")
    assert raised.value.filename == str(out) and not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="reset") as other, partial_file(out):
        raise OSError(104, "Connection reset by peer")
    assert other.value.filename is None
