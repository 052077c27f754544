"""Ids, slots, positions and lengths that are wrong: what they hold instead, how far they are off, or by what rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from parity.compare.facts import Facts
from parity.compare.origins import held_instead
from parity.compare.relations import FEW_ROWS, relation
from parity.compare.rows import StageRows
from parity.diagnose.components.by_rule import in_rules, round_late
from parity.diagnose.components.chosen import in_choices
from parity.diagnose.components.counted import in_counts
from parity.diagnose.components.vocabularies import through_offsets
from parity.diagnose.components.wrong import Component
from parity.golden.views import DumpView, TrustedGolden


def in_whole_numbers(golden: TrustedGolden, run: DumpView, rows: StageRows) -> tuple[Component, ...]:
    """The one reading that holds for all wrong rows of an exact stage; nothing where there is none."""
    apart = np.asarray((rows.golden != rows.device).any(axis=tuple(range(1, rows.golden.ndim))))
    if not apart.any():
        return ()
    facts = Facts.of(golden, rows)
    where = "" if apart.all() else relation(apart, np.ones(len(apart), bool), facts)
    sides = [side[apart].astype(np.int64) for side in (rows.golden, rows.device)]
    steps = np.unique(sides[1] - sides[0])
    held, values = held_instead(golden, run, rows.named), np.unique(rows.device[apart])
    telling = abs(steps[0]) == 1 or apart.sum() > 2 or len(np.unique(sides[0])) > 1
    if len(steps) == 1 and telling:
        says = f"{steps[0]:+d} wherever it differs"
    elif held and held.by_all:
        says = held.says
    elif len(values) == 1 and apart.sum() > 1:
        says = f"{values[0]} wherever it differs"
    elif round_late(facts, rows.golden.astype(np.int64), rows.device.astype(np.int64)):
        says = "those of the round before"
    elif counted := in_counts(facts, rows, apart):
        says = counted
    elif ruled := in_rules(facts.of_rows(apart), *sides) or through_offsets(golden, *sides):
        says = ruled
    else:
        told = bool(apart.all() or (where and not where.startswith(FEW_ROWS)))
        rule = in_choices(golden, run, rows, told, facts)
        return (replace(rule, where=where),) if rule else ()
    return (Component(says, 1.0, None, where),)
