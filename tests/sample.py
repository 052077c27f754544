"""What of a catalogue the ordinary tests take: a sample; all of it with PARITY_CATALOGUE=whole (`make catalogue`).

The sample is chosen by the members' names, so that it is the same everywhere and does not move when a member is added.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import TypeVar
from zlib import crc32

import pytest

WHOLE = os.environ.get("PARITY_CATALOGUE") == "whole"
EVERY = 48
"""One member in so many, and one of each kind at the least."""

by_night = pytest.mark.skipif(
    not WHOLE, reason="`make catalogue`: docs/testing.md says what the ordinary tests have of it"
)

Member = TypeVar("Member")


def sample(
    members: Iterable[Member], name: Callable[[Member], str] = str, kind: Callable[[Member], object] = lambda one: None
) -> list[Member]:
    """The members that an ordinary run of the tests takes, in their order.

    Args:
        name: a member's own name.
        kind: of each kind at least one member is taken.
    """
    members = list(members)
    if WHOLE:
        return members
    rank = {name(one): crc32(name(one).encode()) for one in members}
    least: dict[object, str] = {}
    for one in sorted(members, key=lambda one: rank[name(one)]):
        least.setdefault(kind(one), name(one))
    return [one for one in members if rank[name(one)] % EVERY == 0 or name(one) in least.values()]


def cover(rows: Iterable[Member], axes: Callable[[Member], Iterable[object]] = lambda row: row) -> list[Member]:
    """Of a product, the rows that an ordinary run of the tests takes, in their order: few that meet every value once.

    Args:
        axes: a row's values, hashable, one for each axis; an axis may be a pair of two others.
    """
    rows = list(rows)
    met = [set(enumerate(axes(row))) for row in rows]
    unmet, taken = set().union(*met), set(range(len(rows)) if WHOLE else ())
    while unmet and not WHOLE:
        best = max(range(len(rows)), key=lambda number: len(met[number] & unmet))
        taken.add(best)
        unmet -= met[best]
    return [row for number, row in enumerate(rows) if number in taken]


def first(members: Iterable[Member], count: int = 1) -> list[Member]:
    """The members that an ordinary run of the tests takes where any will do: the first ones."""
    return list(members)[: None if WHOLE else count]


def cut(line: str, words: int = 20) -> str:
    """A chat prompt, a line of JSON, cut to its first words: 20 are about 50 tokens; the sliding window is 32."""
    prompt = json.loads(line)
    for message in prompt["messages"]:
        message["content"] = " ".join(message["content"].split()[:words])
    return json.dumps(prompt)
