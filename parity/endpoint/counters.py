"""Acceptance counters that a server exports to Prometheus, and which convention they follow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from parity import limits
from parity.errors import Inconclusive

SAMPLE = re.compile(r'(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s+(?P<value>\S+)')
"""A line of the text format: name, labels in braces, value, perhaps a time behind it."""

PLACE = re.compile(r'position="(\d{1,4})"')


@dataclass(frozen=True)
class Names:
    """What one engine calls its counters; the ending `_total` is Prometheus' own. Empty where it has none.

    Attributes:
        bonus: its accepted tokens count the target's own token of each round as well.
    """

    engine: str
    rounds: str
    accepted: str
    drafted: str
    places: str
    emitted: str
    bonus: bool


KNOWN = (
    Names(
        "vLLM",
        rounds="vllm:spec_decode_num_drafts",
        accepted="vllm:spec_decode_num_accepted_tokens",
        drafted="vllm:spec_decode_num_draft_tokens",
        places="vllm:spec_decode_num_accepted_tokens_per_pos",
        emitted="vllm:generation_tokens",
        bonus=False,
    ),
)
"""Counters that only grow; an average over a window that nobody knows (SGLang's `spec_accept_length`) is none."""


@dataclass(frozen=True)
class DraftCounters:
    """What was counted: since a server started, or between two readings.

    Attributes:
        rounds: verify rounds with drafts.
        accepted: as the engine counts, see `Names.bonus`; None where nothing does.
        drafted: drafts made, or None.
        places: accepted drafts by place in the round, from the first.
        emitted: tokens generated, of whoever asked, or None.
    """

    rounds: float
    accepted: float | None
    drafted: float | None
    places: tuple[float, ...] = ()
    emitted: float | None = None

    def since(self, before: DraftCounters) -> DraftCounters:
        """What was counted after another reading.

        Raises:
            Inconclusive: a counter went back: the server was started anew.
        """
        places = tuple(a - b for a, b in zip(self.places, before.places, strict=False))
        pairs = ((self.accepted, before.accepted), (self.drafted, before.drafted), (self.emitted, before.emitted))
        rest = [None if a is None or b is None else a - b for a, b in pairs]
        made = DraftCounters(self.rounds - before.rounds, rest[0], rest[1], places, rest[2])
        if min([made.rounds, *places, *(one for one in rest if one is not None)]) < 0:
            raise Inconclusive("a counter of the server went back: it was started anew meanwhile")
        return made


def read_counters(text: bytes) -> tuple[Names, DraftCounters] | None:
    """The counters in a page of /metrics; None where no engine's are there.

    Raises:
        Inconclusive: a counter is no count.
    """
    samples = _samples(text)
    for names in KNOWN:
        if (rounds := _of(samples, names.rounds)) is not None:
            found = {part: _of(samples, getattr(names, part)) for part in ("accepted", "drafted", "emitted")}
            return names, DraftCounters(rounds, places=_places(samples, names.places), **found)
    return None


def _samples(text: bytes) -> Mapping[str, Mapping[str, float]]:
    """Name, then labels, to value: of the names that are known."""
    known = {getattr(names, part) for names in KNOWN for part in ("rounds", "accepted", "drafted", "places", "emitted")}
    found: dict[str, dict[str, float]] = {}
    for line in text.decode(errors="replace").splitlines():
        if len(line) > limits.LINE_BYTES or not (sample := SAMPLE.match(line)):
            continue
        name = sample["name"].removesuffix("_total")
        if name in known and (sample["name"].endswith("_total") or f"{name}_total" not in line):
            found.setdefault(name, {})[sample["labels"] or ""] = _count(name, sample["value"])
    return found


def _count(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < 2**53 or number != int(number):
        raise Inconclusive(f"the server's counter {name} is {value[:40]!r}, which is no count")
    return number


def _of(samples: Mapping[str, Mapping[str, float]], name: str) -> float | None:
    """A counter over all its labels: every engine's of one server."""
    return sum(samples[name].values()) if name in samples else None


def _places(samples: Mapping[str, Mapping[str, float]], name: str) -> tuple[float, ...]:
    by_place: dict[int, float] = {}
    for labels, value in samples.get(name, {}).items():
        if place := PLACE.search(labels):
            by_place[int(place[1])] = by_place.get(int(place[1]), 0.0) + value
    return (
        tuple(by_place[place] for place in sorted(by_place)) if sorted(by_place) == list(range(len(by_place))) else ()
    )
