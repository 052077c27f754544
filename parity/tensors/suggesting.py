"""A map between the names of two sides out of what their tensors hold; names that are the same need none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity import limits
from parity.errors import UsageError
from parity.imports.captured import Captured
from parity.imports.forms import Member, Rule, form, numbers_of, place_of
from parity.imports.map_rows import name_pattern
from parity.imports.suggesting import Suggestion
from parity.tensors.content import ExpectedTensors
from parity.tensors.inputs import arrays_of

NUMBER = re.compile(r"\{(n\d+)(:0\d)?\}")


@dataclass
class PairSuggestion(Suggestion):
    """A map of two sides as text, and what of them it takes.

    Args:
        same: names that both sides have, with one shape: they need no row.
        by_name: names that a row takes as it takes others of their form, though their numbers differ, and to what.
    """

    same: list[str] = field(default_factory=list)
    by_name: dict[str, str] = field(default_factory=dict)

    def fields(self, members: Sequence[Member], rule: Rule) -> dict[str, Any]:
        """The fields of a row."""
        groups: dict[str, str] = {}

        def said(number: re.Match[str]) -> str:
            (source, added), digits = rule.said[number[1]], number[2] or ""
            if source is None:
                return format(added, digits[1:])
            groups[source] = source
            return "{" + source + (f"{added:+d}" if added else "") + digits + "}"

        to = NUMBER.sub(said, rule.template)
        fits = [member.fits[place] for member, place in zip(members, rule.places, strict=True)]
        own = fits[0].known.named.stage.axes[1:]
        axes = {} if fits[0].axes == own else {"axes": list(fits[0].axes)}
        return {"name": name_pattern(members, groups), "to": to} | axes

    def leave_out(self, member: Member, rule: Rule) -> None:
        """Say that a tensor is not like the one that the row of its form gives it: comparing them shows how."""
        self.by_name[member.captured.name] = place_of(rule.template, rule.said, member)[2]


def suggest_names(actual: str | Path, expected: str | Path) -> PairSuggestion:
    """Pair every tensor of actual with one of expected by what it holds, where their names differ.

    Raises:
        UsageError: a side cannot be read, or has too many tensors.
    """
    from parity.tensors.files import refuse_dumps

    refuse_dumps(Path(actual), Path(expected))
    mine, true = arrays_of(str(actual), "actual"), arrays_of(str(expected), "expected")
    made = PairSuggestion()
    made.same = [name for name in mine if name in true and mine[name]().shape == true[name]().shape]
    mine, true = ({name: read for name, read in side.items() if name not in {*made.same}} for side in (mine, true))
    for side, named in ((mine, actual), (true, expected)):
        if len(side) > limits.PAIRED:
            raise UsageError(f"{named} has more than {limits.PAIRED} tensors to pair by content: name a part of it")
    samples = ExpectedTensors()
    for name, read in true.items():
        if "{" not in name and "}" not in name:
            samples.add(name, read())
    forms: dict[str, list[Member]] = {}
    for name, read in mine.items():
        captured = Captured(name, str(actual), read)
        member = Member(captured, samples.pair(read()), numbers_of(captured))
        forms.setdefault(form(name), []).append(member)
    for members in forms.values():
        made.add(members)
    return made
