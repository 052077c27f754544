"""The entry point, `parity` and `python -m parity`: a signal is minded before anything else is imported."""

from __future__ import annotations

import os
import signal
from typing import Any


def main() -> None:
    """Run the command line."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a job in the background
            signal.signal(number, _leave)
    from parity.cli import main

    main()


def _leave(number: int, frame: Any) -> None:
    """Nothing is begun yet: there is nothing to unwind."""
    try:
        os.write(2, b"parity: interrupted; nothing was left half-written\n")
    finally:
        os._exit(128 + number)


if __name__ == "__main__":
    main()
