"""How many rows of a pass each expert runs, and where among them a row is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Loads:
    """Of rows [R] behind a router, int64; -1 of a row without experts.

    Attributes:
        least_load, most_load: the rows of its pass that a row's least, and its most, busy expert runs.
        first_place, last_place: a row's number among the rows of its pass that an expert of its own runs, counted from
            1: the least and the largest over its experts.
        places: the same of each expert [R], 0 where a row is none of its.
    """

    least_load: np.ndarray
    most_load: np.ndarray
    first_place: np.ndarray
    last_place: np.ndarray
    places: tuple[np.ndarray, ...] = ()

    @classmethod
    def of(cls, experts: Mapping[int, np.ndarray], passes: np.ndarray) -> Loads:
        """Of the experts that rows chose (bool [R] each), and which pass each row is of, [R]."""
        runs = [*_runs([*experts.values()], passes)]
        none = np.full(len(passes), -1)
        loads, places = ([run[which] for run in runs] for which in (0, 1))
        return cls(_least(loads, none), _most(loads, none), _least(places, none), _most(places, none), tuple(places))


def _runs(experts: list[np.ndarray], passes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of each expert the rows of the pass that it runs, and each row's number among them; 0 where it is none of its."""
    which = np.unique(passes, return_inverse=True)[1].ravel()
    order = np.argsort(which, kind="stable")
    for chosen in experts:
        load = np.bincount(which, weights=chosen).astype(np.int64)
        counted, place = np.cumsum(chosen[order]), np.empty(len(which), np.int64)
        before = np.concatenate([[0], np.cumsum(load)])[:-1]
        place[order] = counted - before[which[order]]
        yield np.where(chosen, load[which], 0), np.where(chosen, place, 0)


def _least(values: list[np.ndarray], none: np.ndarray) -> np.ndarray:
    """The smallest that is not 0; -1 where all are."""
    far = np.iinfo(np.int64).max
    found = np.min([np.where(value > 0, value, far) for value in values], axis=0) if values else none
    return np.where(found == far, -1, found)


def _most(values: list[np.ndarray], none: np.ndarray) -> np.ndarray:
    found = np.max(values, axis=0) if values else none
    return np.where(found == 0, -1, found)
