"""What a device's code does to the process around it is undone."""

from __future__ import annotations

import sys

from parity.guard import ask


def test_a_path_that_a_device_clears_is_there_again_and_what_it_adds_stays():
    before = list(sys.path)

    def clear():
        sys.path[:] = ["its own"]

    try:
        ask("device", "draft", clear)
        assert sys.path == ["its own", *before]
    finally:
        sys.path = before
