"""A name map out of what tensors hold: one row for all names of one form where their numbers agree, said where not."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity import limits
from parity.errors import UsageError
from parity.golden.views import DumpView
from parity.imports import READERS
from parity.imports.captured import Captured, TorchLoad
from parity.imports.content import content
from parity.imports.pairing import Fit, Paired, cosine, pair

DIGITS = re.compile("([0-9]+)")
SEEDS = 4
"""Tensors of a form whose fits are tried as a rule of all."""
FIELDS = 6
"""Numbers within a name that may be a layer, a round or a prompt."""
Place = tuple[int, int, str]


@dataclass(frozen=True)
class Member:
    """One tensor of a form of names.

    Args:
        numbers: by the place in the name, and `step`.
        narrow: whether its float32 numbers are all bfloat16's; None where it has none.
    """

    captured: Captured
    paired: Paired
    numbers: Mapping[str, int]
    narrow: bool | None = None

    @property
    def fits(self) -> dict[Place, Fit]:
        """Where it may go as it is."""
        return {fit.place: fit for fit in self.paired.fits if not (fit.added or fit.scaled or fit.part)}


@dataclass(frozen=True)
class Rule:
    """How the places of all tensors of one form follow from the numbers in their names.

    Args:
        template: of the stage.
        said: `l`, `round` and `prompt` to the number in the name (None for none) and what is added to it.
        places: of each member, in order.
    """

    template: str
    said: Mapping[str, tuple[str | None, int]]
    places: tuple[Place, ...]


@dataclass
class Suggestion:
    """A map as text, and what of the dump it takes.

    Args:
        narrow: every float32 number is one of bfloat16.
        paired: names that rows take, and where they belong.
        unsure: names to what may be done with them: several stages, parts, sums, multiples.
        unlike: names to why nothing was found.
    """

    blocks: list[str] = field(default_factory=list)
    narrow: bool = False
    paired: dict[str, list[Place]] = field(default_factory=dict)
    unsure: dict[str, str] = field(default_factory=dict)
    unlike: dict[str, str] = field(default_factory=dict)
    _taken: dict[Place, Member] = field(default_factory=dict)

    def text(self) -> str:
        """The map's file.

        Raises:
            UsageError: it would have more rows than a map may.
        """
        if len(self.blocks) > limits.ROWS:
            raise UsageError(
                f"the map would have {len(self.blocks)} rows, more than {limits.ROWS}: name a part of the dump, or "
                "number its layers and steps within the names"
            )
        head = "# Paired by content. Rows are what the numbers show; what is commented out is for you to choose.\n"
        if self.narrow:
            head += '\n[run]\nprecision = "bfloat16"  # every number is one of bfloat16\n'
        return head + "\n" + "\n\n".join(self.blocks) + "\n"

    def fields(self, members: Sequence[Member], rule: Rule) -> dict[str, Any]:
        """The fields of a row for these tensors."""
        return _fields(members, rule)

    def add(self, members: Sequence[Member]) -> None:
        """Enter all tensors of one form of names."""
        rules = _rules(members)
        if len(rules) == 1:
            self._row(members, rules[0])
        elif rules or len(members) == 1:
            self._unsure(members, rules)
        elif most := _rule_of_most(members):
            following, rule = most
            for member in members:
                if member not in following:
                    self.leave_out(member, rule)
            self._row(following, rule)
        else:
            self._one_by_one(members)

    def leave_out(self, member: Member, rule: Rule) -> None:
        """Keep a tensor out of the row of its form, which goes by this rule, with the reason."""
        why = "; or ".join(map(_what, member.paired.fits))
        (self.unsure if why else self.unlike)[member.captured.name] = why or member.paired.why
        row = {"name": form_name([member], {}), "ignore": f"not as it is: {why}" if why else member.paired.why}
        self.blocks.append(_toml([member], row))

    def _one_by_one(self, members: Sequence[Member]) -> None:
        """A row for each name; a name that comes in several steps has none."""
        times = Counter(member.captured.name for member in members)
        for member in members:
            if times[member.captured.name] == 1:
                self.add([member])
        for name in (name for name, count in times.items() if count > 1):
            same = [member for member in members if member.captured.name == name]
            if any(member.paired.fits for member in same):
                self._say(same, f"comes {times[name]} times, and no row says which is which")
            else:
                self.unlike[name] = same[0].paired.why

    def _row(self, members: Sequence[Member], rule: Rule) -> None:
        for member, place in zip(members, rule.places, strict=True):
            before = self._taken.get(place)
            if before and not _same(before, member, place):
                self._say(
                    members, f"{before.fits[place].known} is also like {before.captured.name}: choose one of them"
                )
                return
        twice = [place for place in rule.places if place in self._taken]
        if twice and len(twice) == len(members):
            first = self._taken[twice[0]].captured.name
            ignored = {"name": form_name(members, {}), "ignore": f"the same numbers as {first}"}
            self.blocks.append(_toml(members, ignored))
            return
        self._taken |= dict(zip(rule.places, members, strict=True))
        for member, place in zip(members, rule.places, strict=True):
            self.paired.setdefault(member.captured.name, []).append(place)
        self.blocks.append(_toml(members, self.fields(members, rule)))

    def _unsure(self, members: Sequence[Member], rules: Sequence[Rule]) -> None:
        """Several rules for a form, or a single tensor that is no stage as it is."""
        for rule in rules:
            self.blocks.append(_commented(_toml(members, self.fields(members, rule))))
        said = [_what(fit) for fit in members[0].paired.fits]
        if said:
            self._say(members, "; or ".join(said), listed=bool(rules))
        else:
            self.unlike |= {member.captured.name: member.paired.why for member in members}

    def _say(self, members: Sequence[Member], said: str, listed: bool = False) -> None:
        self.unsure |= {member.captured.name: said for member in members}
        if not listed:
            self.blocks.append(_commented(f"{members[0].captured.name}: {said}"))


def suggest_map(source: str, paths: Sequence[Path], golden: DumpView, torch_load: TorchLoad) -> Suggestion:
    """The map of a dump in this format; see `suggest`.

    Raises:
        UsageError: the dump cannot be read, or holds too much.
    """
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} does not exist")
    return suggest(READERS[source](paths, torch_load), golden)


def suggest(tensors: Iterable[Captured], golden: DumpView) -> Suggestion:
    """Pair every tensor of rank 0 with the golden's stages by what it holds.

    Raises:
        UsageError: the dump has more tensors, or the golden more rows, than are paired.
    """
    held, made = content(golden), Suggestion()
    listed = [one for one in islice(tensors, limits.PAIRED + 1) if not one.rank]
    if len(listed) > limits.PAIRED:
        raise UsageError(f"the dump has more than {limits.PAIRED} tensors to pair by content: name a part of it")
    if not listed:
        raise UsageError("the dump holds no tensor of rank 0 to pair by content")
    forms: dict[str, list[Member]] = {}
    for captured in listed:
        array = captured.load()
        member = Member(captured, pair(array, held), numbers_in(captured), _narrow(array))
        forms.setdefault(DIGITS.sub("0", captured.name), []).append(member)
    fine = [member.narrow for members in forms.values() for member in members if member.paired.fits]
    made.narrow = any(fine) and False not in fine
    for members in forms.values():
        made.add(members)
    return made


def _narrow(array: NDArray[np.generic]) -> bool | None:
    """Whether float32 numbers are all bfloat16's: their last 16 bits are zero."""
    if array.dtype != np.float32:
        return None
    return not np.any(np.ascontiguousarray(array).view(np.uint32) & np.uint32(0xFFFF))


def numbers_in(captured: Captured) -> dict[str, int]:
    found = [number for number in DIGITS.findall(captured.name) if len(number) < 10][:FIELDS]
    numbers = {f"n{place}": int(number) for place, number in enumerate(found)}
    return numbers if captured.step is None else numbers | {"step": captured.step}


def _rules(members: Sequence[Member]) -> list[Rule]:
    """The rules that every tensor of a form follows, of those that say the same the plainest."""
    found: dict[tuple[Place, ...], Rule] = {}
    for rule in _possible(members[0], members):
        if len(set(rule.places)) == len(members) == len(_following(members, rule)):
            found.setdefault(rule.places, rule)
    return list(found.values())


def _rule_of_most(members: Sequence[Member]) -> tuple[list[Member], Rule] | None:
    """The one rule that most of the tensors follow that are like something, and they; None where there is none."""
    fitting = [member for member in members if member.fits]
    found: dict[tuple[Place, ...], tuple[list[Member], Rule]] = {}
    for start in fitting[:SEEDS]:
        for rule in _possible(start, fitting):
            following = _following(fitting, rule)
            places = tuple(place for member, place in zip(fitting, rule.places, strict=True) if member in following)
            if 1 < len(following) > len(fitting) / 2 and len(set(places)) == len(places) and _apart(members, following):
                found.setdefault(places, (following, Rule(rule.template, rule.said, places)))
    most = max((len(following) for following, _ in found.values()), default=0)
    best = [each for each in found.values() if len(each[0]) == most]
    return best[0] if len(best) == 1 else None


def _possible(start: Member, members: Sequence[Member]) -> Iterator[Rule]:
    """Every rule by which this tensor has one of its fits."""
    sources = [None, *(name for name in start.numbers if all(name in one.numbers for one in members))]
    for fit in start.fits.values():
        coordinates, template = fit.known.coordinates, fit.known.template
        for chosen in product(sources, repeat=len(coordinates)):
            said = {
                what: (source, value - (start.numbers[source] if source else 0))
                for (what, value), source in zip(coordinates.items(), chosen, strict=True)
            }
            yield Rule(template, said, tuple(place_of(template, said, member) for member in members))


def place_of(template: str, said: Mapping[str, tuple[str | None, int]], member: Member) -> Place:
    values = {what: (member.numbers[source] if source else 0) + added for what, (source, added) in said.items()}
    return values.get("prompt", 0), values.get("round", 0), template.format(**values)


def _following(members: Sequence[Member], rule: Rule) -> list[Member]:
    """The tensors that are like the place that a rule gives them, laid out as most of them are."""
    fits = [member.fits.get(place) for member, place in zip(members, rule.places, strict=True)]
    counts = Counter((fit.axes, fit.first) for fit in fits if fit)
    layout = counts.most_common(1)[0][0] if counts else None
    return [member for member, fit in zip(members, fits, strict=True) if fit and (fit.axes, fit.first) == layout]


def _fields(members: Sequence[Member], rule: Rule) -> dict[str, Any]:
    """The fields of a row."""
    groups: dict[str, str] = {}

    def said(what: str) -> str:
        source, added = rule.said[what]
        if source is None:
            return str(added)
        name = source if source == "step" else groups.setdefault(source, what)
        return "{" + name + (f"{added:+d}" if added else "") + "}"

    stage = rule.template.replace("{l}", said("l")) if "l" in rule.said else rule.template
    row: dict[str, Any] = {"name": "", "stage": stage, "round": said("round"), "prompt": said("prompt")}
    fits = [member.fits[place] for member, place in zip(members, rule.places, strict=True)]
    if fits[0].axes != fits[0].known.named.stage.axes:
        row["axes"] = list(fits[0].axes)
    if any(fit.padded for fit in fits):
        row |= {"padded": True} | ({"rows": f"{fits[0].first}:"} if fits[0].first else {})
    return row | {"name": form_name(members, groups)}


def form_name(members: Sequence[Member], groups: Mapping[str, str]) -> str:
    """The regular expression of a form of names; a number that differs and says nothing is any number."""
    split = [DIGITS.split(member.captured.name) for member in members]
    parts, number = [], 0
    for place, part in enumerate(split[0]):
        if not place % 2:
            parts.append(re.escape(part))
            continue
        group = groups.get(f"n{number}") if len(part) < 10 else None
        any_of_them = part if len({one[place] for one in split}) == 1 else r"\d+"
        parts.append(rf"(?P<{group}>\d+)" if group else any_of_them)
        number += len(part) < 10
    return "".join(parts)


def _apart(members: Sequence[Member], fitting: Sequence[Member]) -> bool:
    """Whether no name is of both kinds, in one step this and in another that."""
    names = {member.captured.name for member in fitting}
    return sum(member.captured.name in names for member in members) == len(fitting)


def _same(before: Member, member: Member, place: Place) -> bool:
    """Whether two tensors fit a place in the same way to the last bit."""
    one, other = before.fits[place], member.fits[place]
    return (one.left, one.scale) == (other.left, other.scale)


def _what(fit: Fit) -> str:
    """What a fit says of a tensor."""
    said = str(fit.known)
    if fit.added:
        said += " with the residual stream added to it already: show it before"
    if fit.part:
        said += f", rows {-fit.first} to {fit.rows - fit.first - 1} of {fit.known.rows} only"
    return said + (f", times {fit.scale:.4g}" if fit.scaled else "")


def _toml(members: Sequence[Member], row: Mapping[str, Any]) -> str:
    """One row with its evidence."""
    fits = [fit for member in members for fit in member.paired.fits[:1]]
    others = [member.paired.next for member in members if member.paired.next]
    lines = [f"# {len(members)} tensor" + "s" * (len(members) > 1)]
    if fits:
        lines[0] += f", cosine {min(map(cosine, fits)):.6f}" + (" or more" if len(fits) > 1 else "")
    if others:
        near = max(others, key=cosine)
        lines[0] += f"; the nearest other {near.known.stage}, {cosine(near):.3g}"
    return "\n".join([*lines, "[[row]]", *(f"{name} = {_value(value)}" for name, value in row.items())])


def _value(value: Any) -> str:
    """A value of TOML: JSON's, but for the one character that TOML has escaped as well."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _commented(block: str) -> str:
    return "\n".join(f"# {line}" for line in block.splitlines())
