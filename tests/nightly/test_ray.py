"""`parity nightly --engine ray` on a Ray cluster of this machine: two nodes with a CPU each."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from parity.nightly.folder import NightFolder
from tests.nightly.conftest import DYING, ROOT, nightly
from tests.sample import by_night

pytestmark = pytest.mark.skipif(
    find_spec("ray") is None, reason="ray is not installed: pip install 'parity-harness[ray]'"
)

DEVICES = {
    "numpy": "numpy",
    "taps": "parity.device.faults:tap_order",
    "segfault": f"{DYING}:segfault",
    "late": f"{DYING}:hangs_unless_told",
}
STORE = 80_000_000
"""Bytes of Ray's object store; results are small."""


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def node(folder: Path, *options: str) -> subprocess.Popen:
    """`ray start` in the foreground, on the loopback, with one CPU."""
    command = [
        str(Path(sys.executable).with_name("ray")),
        "start",
        "--block",
        "--num-cpus=1",
        "--node-ip-address=127.0.0.1",
    ]
    command += ["--disable-usage-stats", f"--object-store-memory={STORE}", *options]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PARITY_TEST_GO": str(folder / "go"),
    }
    with (folder / f"node{len(options)}.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def workers(nodes: list[subprocess.Popen]) -> list[psutil.Process]:
    """The Ray workers that have a cell."""
    found = [child for one in nodes for child in psutil.Process(one.pid).children(recursive=True)]
    return [one for one in found if one.is_running() and one.name().startswith("ray::run_here")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Address of a head and a second node, their processes, the file that a device waits for; ended by process id."""
    folder = Path(tmp_path_factory.mktemp("ray"))
    short = Path("/tmp") / f"parity-ray-{os.getpid()}"  # sockets have short paths
    port = free_port()
    nodes = [node(folder, "--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={short}")]
    wait_for(lambda: "Ray runtime started" in "".join(path.read_text() for path in folder.glob("*.log")))
    nodes.append(node(folder, f"--address=127.0.0.1:{port}"))
    wait_for(lambda: all("Ray runtime started" in path.read_text() for path in folder.glob("*.log")))
    yield f"127.0.0.1:{port}", nodes, folder / "go"
    mine = [
        child for one in nodes for child in (psutil.Process(one.pid), *psutil.Process(one.pid).children(recursive=True))
    ]
    for process in mine:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    for one in nodes:
        one.wait()
    shutil.rmtree(short, ignore_errors=True)


def wait_for(ready) -> None:
    deadline = time.monotonic() + 120
    while not (found := ready()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def verdicts(folder: Path) -> dict[str, tuple[str, str, str]]:
    """Every cell's verdict, first divergent place and error."""
    return {one.cell.axes.device: (one.verdict, one.first, one.error) for one in NightFolder(folder).results()}


@by_night
def test_the_same_verdicts_as_on_one_machine_and_a_killed_worker_costs_no_result(
    cluster, write_matrix, tmp_path, cell_name
):
    address, nodes, go = cluster
    matrix = write_matrix(DEVICES, retries=2)
    ray = ("--engine", "ray", "--ray-address", address)
    process = nightly(matrix, "--out", tmp_path / "ray", *ray, home=tmp_path)
    folder = NightFolder(tmp_path / "ray")
    others = [cell_name(name) for name in DEVICES if name != "late"]
    wait_for(lambda: (folder.path.exists() and not set(others) & set(folder.missing())) or process.poll() is not None)
    (victim,) = wait_for(lambda: workers(nodes))
    victim.kill()
    go.touch()
    out, err = process.communicate(timeout=240)
    assert process.returncode == 1, out + err
    matrix = write_matrix({name: device for name, device in DEVICES.items() if name != "late"}, retries=2)
    local = nightly(matrix, "--out", tmp_path / "local", home=tmp_path)
    out, err = local.communicate(timeout=240)
    assert local.returncode == 1, out + err
    found = verdicts(tmp_path / "ray")
    assert found.items() >= verdicts(tmp_path / "local").items()
    assert {name: one[0] for name, one in found.items()} == {
        "numpy": "pass", "taps": "fail", "segfault": "inconclusive", "late": "pass",
    }  # fmt: skip
    assert "Segmentation fault" in folder.log_tail(cell_name("segfault"))


@by_night
def test_a_cell_that_kills_its_worker_is_broken_and_a_made_golden_goes_by_its_url(
    cluster, write_matrix, tiny_golden, tmp_path
):
    matrix = write_matrix({"killer": f"{DYING}:kills_its_worker", "numpy": "numpy"}, retries=1)
    made = matrix.read_text().replace(
        f"golden = '{tiny_golden.folder}'", f"prompts = '{tiny_golden.folder.parent / 'one.jsonl'}'"
    )
    matrix.write_text(made)
    options = ("--engine", "ray", "--ray-address", cluster[0], "--goldens", f"file://{tmp_path / 'store'}")
    process = nightly(matrix, "--out", tmp_path / "night", *options, home=tmp_path)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 3, out + err
    found = verdicts(tmp_path / "night")
    assert found["numpy"][0] == "pass" and "its Ray worker or node died, every time" in found["killer"][2]
    judged = [Path(one.golden) for one in NightFolder(tmp_path / "night").results() if one.golden]
    assert [path.name.partition("-")[0] for path in judged] == ["fetched"]


def test_no_cluster_is_one_sentence(parity, write_matrix):
    nobody = f"127.0.0.1:{free_port()}"
    ended = parity("nightly", write_matrix({"numpy": "numpy"}), "--engine", "ray", "--ray-address", nobody)
    assert ended.code == 2 and f"no Ray cluster answers at {nobody}" in ended.err and ended.err.count("\n") == 1
    assert not list(parity.home.iterdir()), "nothing is begun"
