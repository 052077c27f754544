"""Units of compilation: kernels that an engine may run as one compiled program."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from parity.device.kernels.tap import untapped

P = ParamSpec("P")
R = TypeVar("R")


def program(kernel: Callable[P, R]) -> Callable[P, R]:
    """Let the engine of the first argument compile this kernel.

    The first argument is an array. Where its class offers `run_program(kernel, arguments)`, that runs the
    call; without one (numpy, ranks), or where somebody watches (`tap` is given and is not `untapped`), the
    kernel is called as it is. Arrays under trace answer by calling the kernel too, so that programs inline into
    larger ones. Where it offers `run_together(program, arguments)`, that makes one call of those of several
    sequences, watched or not.

    Arrays may sit in tuples, lists, dicts and a `Step`; everything else is static and
    must be hashable. Arrays written in place keep what was written when the program returns: an engine
    without mutable arrays returns them beside the result.
    """
    form = signature(kernel)
    place = list(form.parameters).index("tap") if "tap" in form.parameters else None

    @wraps(kernel)
    def run(*arguments: P.args, **named: P.kwargs) -> R:
        bound = form.bind(*arguments, **named).args if named else arguments
        together = getattr(type(bound[0]), "run_together", None)
        if together is not None:
            one: R = together(run, bound)
            return one
        hook = getattr(type(bound[0]), "run_program", None)
        if hook is None or (place is not None and bound[place] is not untapped):
            return kernel(*arguments, **named)
        made: R = hook(kernel, bound)
        return made

    return run
