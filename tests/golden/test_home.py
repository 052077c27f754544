"""Names of folders that nobody named."""

from __future__ import annotations

import subprocess
import sys

from parity.home import fresh, home


def test_a_devices_name_is_one_folder_whatever_its_options_hold():
    place = fresh("runs", "my.port:load,root=/a/b c,show=kv.*" + "x" * 500)
    assert place.parent == home() / "runs" and len(place.name) < 200
    assert place.name.split("-", 2)[2].startswith("my.port-load,root=-a-b-c,show=kv.-x")


def test_processes_that_start_together_get_folders_of_their_own():
    """Two runs begun in one millisecond were given one folder: the second was refused after it had run."""
    code = "import time; from parity.home import stamp\nfor _ in range(200): print(stamp()), time.sleep(1e-4)"
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    stamps = [line for process in started for line in process.communicate()[0].split()]
    assert len(stamps) == 400 == len(set(stamps))
