"""Rows of a name map as text, with the evidence above them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from parity.imports.forms import DIGITS, Member, Rule
from parity.imports.pairing import cosine


def fields(members: Sequence[Member], rule: Rule) -> dict[str, Any]:
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
    return row | {"name": name_pattern(members, groups)}


def name_pattern(members: Sequence[Member], groups: Mapping[str, str]) -> str:
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


def toml_row(members: Sequence[Member], row: Mapping[str, Any]) -> str:
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


def commented(block: str) -> str:
    """Lines of a map that do nothing."""
    return "\n".join(f"# {line}" for line in block.splitlines())
