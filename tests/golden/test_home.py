"""Names of folders that nobody named."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from parity.home import fresh, home, stamp


def test_a_devices_name_is_one_folder_whatever_its_options_hold():
    place = fresh("runs", "my.port:load,root=/a/b c,show=kv.*" + "x" * 500)
    assert place.parent == home() / "runs" and len(place.name) < 200
    assert place.name.split("-", 2)[2].startswith("my.port-load,root=-a-b-c,show=kv.-x")


def _stamp(_: int) -> str:
    return stamp()


def test_processes_that_start_together_get_folders_of_their_own():
    """Two runs begun in one millisecond were given one folder: the second was refused after it had run."""
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        stamps = list(pool.map(_stamp, range(400)))
    assert len(set(stamps)) == len(stamps)
