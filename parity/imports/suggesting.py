"""A name map out of what tensors hold: one row for all names of one form where their numbers agree, said where not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from parity import limits
from parity.errors import UsageError
from parity.golden.views import DumpView
from parity.imports import READERS
from parity.imports.captured import Captured, TorchLoad
from parity.imports.content import content
from parity.imports.forms import Member, Place, Rule, form, is_narrow, numbers_of, rule_of_most, rules_of_all
from parity.imports.map_rows import commented, fields, name_pattern, toml_row
from parity.imports.pairing import Fit, pair


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
        return fields(members, rule)

    def add(self, members: Sequence[Member]) -> None:
        """Enter all tensors of one form of names."""
        rules = rules_of_all(members)
        if len(rules) == 1:
            self._row(members, rules[0])
        elif rules or len(members) == 1:
            self._unsure(members, rules)
        elif most := rule_of_most(members):
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
        row = {"name": name_pattern([member], {}), "ignore": f"not as it is: {why}" if why else member.paired.why}
        self.blocks.append(toml_row([member], row))

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
            ignored = {"name": name_pattern(members, {}), "ignore": f"the same numbers as {first}"}
            self.blocks.append(toml_row(members, ignored))
            return
        self._taken |= dict(zip(rule.places, members, strict=True))
        for member, place in zip(members, rule.places, strict=True):
            self.paired.setdefault(member.captured.name, []).append(place)
        self.blocks.append(toml_row(members, self.fields(members, rule)))

    def _unsure(self, members: Sequence[Member], rules: Sequence[Rule]) -> None:
        """Several rules for a form, or a single tensor that is no stage as it is."""
        for rule in rules:
            self.blocks.append(commented(toml_row(members, self.fields(members, rule))))
        said = [_what(fit) for fit in members[0].paired.fits]
        if said:
            self._say(members, "; or ".join(said), listed=bool(rules))
        else:
            self.unlike |= {member.captured.name: member.paired.why for member in members}

    def _say(self, members: Sequence[Member], said: str, listed: bool = False) -> None:
        self.unsure |= {member.captured.name: said for member in members}
        if not listed:
            self.blocks.append(commented(f"{members[0].captured.name}: {said}"))


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
        member = Member(captured, pair(array, held), numbers_of(captured), is_narrow(array))
        forms.setdefault(form(captured.name), []).append(member)
    fine = [member.narrow for members in forms.values() for member in members if member.paired.fits]
    made.narrow = any(fine) and False not in fine
    for members in forms.values():
        made.add(members)
    return made


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
