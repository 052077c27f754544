"""Trials that cannot be made: a hypothesis that changes nothing here, or cannot apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from parity.diagnose.counterfactual_runs import Undetermined
from parity.errors import ParityError

T = TypeVar("T")


def attempt(trial: Callable[[], T], later: Callable[[], T | None] = lambda: None) -> T | None:
    """What a trial gives; None where the hypothesis changes nothing, or cannot apply to these checkpoints or this
    prompt.

    `later` is the same trial over more rounds, for a hypothesis that these rounds do not determine.
    """
    try:
        return trial()
    except Undetermined:
        return later()
    except ParityError:
        raise
    except Exception as error:
        if getattr(error, "skip", False):
            return None
        raise
