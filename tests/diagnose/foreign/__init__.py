"""Another implementation of the pair behind the device seam, and mistakes of its own.

Written from the equations alone, beside neither the device nor the references that ship here: `clean` is right,
`fault_NAME` makes the one mistake of that name in `truth.TRUTH`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.diagnose.foreign.loop import Foreign
from tests.diagnose.foreign.truth import TRUTH

clean = partial(Foreign, faults=frozenset())


def __getattr__(name: str) -> Callable[..., Foreign]:
    """The factory `fault_NAME`."""
    fault = name.removeprefix("fault_")
    if fault == name or fault not in TRUTH:
        raise AttributeError(name)
    return partial(Foreign, faults=frozenset((fault,)))
