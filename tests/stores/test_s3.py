"""History and goldens on an object store: two writers, a killed one, a slow and a failing store; nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from parity.errors import UsageError
from parity.history import append, load, store
from parity.nightly.goldens import cache, fetch, publish
from parity.remote import Unreachable
from tests.history.synthetic import night, results, world
from tests.history.test_store import WRITER
from tests.meta.dumps import clean, write
from tests.meta.worlds import Size
from tests.sample import by_night

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made():
    return world(1, 4, 2)


@pytest.fixture(scope="module")
def golden(tmp_path_factory) -> Path:
    """A small made-up one."""
    return write(clean(Size(prompts=(50,))), tmp_path_factory.mktemp("golden"))[0].folder


def writer(code: str, *arguments: str) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, *arguments], cwd=ROOT, env=environment, stderr=subprocess.PIPE
    )


def record(url: str, made, number: int) -> None:
    append(url, night(made, number), results(made, number))


def parquet(method: str):
    return lambda asked, path: asked == method and ".parquet" in path


@pytest.fixture
def elsewhere(monkeypatch):
    """A machine on whose variables no store is reached."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_PROFILE", "nobody")


def test_what_a_machine_has_set_leads_to_no_other_store(elsewhere, bucket, made):
    record(bucket, made, 0)
    assert len(load(bucket)["night"].unique()) == 1


@by_night
def test_two_writers_at_once_lose_nothing(bucket, made):
    writers = [writer(WRITER, bucket, cell) for cell in "01"]
    assert [one.communicate()[1] for one in writers] == [b"", b""]
    table = load(bucket)
    assert len(table.drop_duplicates(["night", "cell"])) == 8
    assert len(table) == 4 * (made.values.shape[1] + 4)


def test_a_writer_killed_in_its_upload_leaves_nothing_behind(bucket, made, way):
    record(bucket, made, 0)
    way.waits = lambda method, path: 30.0 if parquet("PUT")(method, path) and made.name(1) in path else 0.0
    code = (
        "import sys\nfrom tests.history.synthetic import *\nfrom parity.history import append\nmade = world(1, 4, 2)\n"
        "append(sys.argv[1], night(made, 1), results(made, 1))"
    )
    process = writer(code, bucket)
    wait_for(lambda: any(parquet("PUT")(*one) and made.name(1) in one[1] for one in way.seen))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert list(load(bucket)["night"].unique()) == [made.name(0)]


def wait_for(found, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("fault", ["fails", "breaks", "waits"])
def test_a_store_that_fails_breaks_off_or_hangs_is_one_sentence_and_loses_nothing(
    fault, bucket, made, way, parity, monkeypatch
):
    record(bucket, made, 0)
    monkeypatch.setattr(store, "ANSWER", 0.5 if fault == "waits" else 60.0)
    setattr(way, fault, (lambda method, path: 20.0) if fault == "waits" else parquet("GET"))
    found = parity("history", bucket)
    assert (
        found.code == 2
        and found.err.count("\n") == 1
        and f"{bucket} does not answer" in found.err
        and "damaged" not in found.err
    )
    way.clear()
    assert load(bucket)["night"].nunique() == 1


@pytest.mark.parametrize("fault", ["fails", "waits"])
def test_a_night_that_cannot_be_recorded_is_one_sentence_and_can_be_later(fault, bucket, made, way, monkeypatch):
    monkeypatch.setattr(store, "ANSWER", 0.5 if fault == "waits" else 60.0)
    setattr(way, fault, (lambda method, path: 20.0) if fault == "waits" else parquet("PUT"))
    with pytest.raises(UsageError, match="cannot be written") as error:
        record(bucket, made, 0)
    assert "\n" not in str(error.value)
    way.clear()
    record(bucket, made, 0)
    assert load(bucket)["night"].nunique() == 1


def test_a_bucket_that_is_not_there_is_one_sentence(way, made, parity):
    found = parity("history", "s3://nowhere/h")
    assert found.code == 2 and "there is no history in s3://nowhere/h" in found.err
    with pytest.raises(UsageError, match=r"cannot be written .*bucket does not exist"):
        record("s3://nowhere/h", made, 0)


def test_a_golden_is_kept_and_fetched_whole(bucket, golden, way):
    publish(golden, bucket)
    folder = fetch(bucket)
    assert {one.name: one.read_bytes() for one in folder.iterdir()} == {
        one.name: one.read_bytes() for one in golden.iterdir()
    }
    way.seen.clear()
    publish(golden, bucket)
    assert not [path for method, path in way.seen if method == "PUT"], "what is there is not put again"


def test_a_golden_whose_writer_was_killed_is_none_until_another_one_ends_it(bucket, golden, way):
    way.waits = lambda method, path: 30.0 if method == "PUT" and "manifest" in path else 0.0
    process = writer(
        "import sys\nfrom pathlib import Path\nfrom parity.nightly.goldens import publish\n"
        "publish(Path(sys.argv[1]), sys.argv[2])",
        str(golden),
        bucket,
    )
    wait_for(lambda: any(method == "PUT" and "manifest" in path for method, path in way.seen))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    way.clear()
    with pytest.raises(UsageError, match="there is no golden at"):
        fetch(bucket)
    publish(golden, bucket)
    assert fetch(bucket).is_dir()


def test_of_two_writers_of_one_golden_at_once_neither_loses_anything(bucket, golden, way):
    """One finds none and begins; another ends before it, and what the first puts then is the same."""
    begun, ended = Event(), Event()

    def hold(method, path):
        if method == "PUT" and ".safetensors" in path and not begun.is_set():
            begun.set()
            ended.wait(30)
        return 0.0

    way.waits = hold
    with ThreadPoolExecutor(1) as other:
        slow = other.submit(publish, golden, bucket)
        assert begun.wait(30)
        assert publish(golden, bucket) == bucket and fetch(bucket).is_dir()
        ended.set()
        assert slow.result(30) == bucket
    shutil.rmtree(cache())
    assert {one.name: one.read_bytes() for one in fetch(bucket).iterdir()} == {
        one.name: one.read_bytes() for one in golden.iterdir()
    }


@pytest.mark.parametrize("fault", ["fails", "breaks"])
def test_a_golden_that_breaks_off_is_worth_another_try_and_leaves_nothing(fault, bucket, golden, way):
    publish(golden, bucket)
    setattr(way, fault, lambda method, path: method == "GET" and ".safetensors" in path)
    with pytest.raises(Unreachable, match="does not answer") as error:
        fetch(bucket)
    assert "\n" not in str(error.value) and not list(cache().iterdir())
    way.clear()
    assert fetch(bucket).is_dir()


def test_a_golden_that_a_store_does_not_take_is_one_sentence(bucket, golden, way):
    way.fails = lambda method, path: method == "PUT"
    with pytest.raises(Unreachable, match="cannot be kept at"):
        publish(golden, bucket)
    way.clear()
    shutil.rmtree(cache(), ignore_errors=True)
    publish(golden, bucket)
    assert fetch(bucket).is_dir()
