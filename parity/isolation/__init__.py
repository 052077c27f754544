"""A device in a process of its own: what ends, hangs or blows up there leaves one check without evidence.

`device.py` is what parity calls, `process.py` starts, watches and ends the process, `served.py` runs in it, `wire.py`
is what they say to each other.
"""

from parity.isolation.device import IsolatedDevice, IsolatedFactory
from parity.isolation.process import ProcessLimits

__all__ = ["IsolatedDevice", "IsolatedFactory", "ProcessLimits"]
