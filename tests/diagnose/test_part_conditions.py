"""Where one prompt has too few wrong rows, what those of a part have in common is told from other prompts too."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.facts import Facts
from parity.diagnose import part_conditions
from parity.diagnose.clock import TimeIsUp
from parity.diagnose.components import Component
from parity.diagnose.part_conditions import PartConditions

ZEROS = Component("rows hold zeros", 1.0, None, "too few rows (1 bad of 40) to tell a condition")


def rows_of(bad):
    """Verify rows of one prompt, 4 a round, of which some positions are wrong."""
    at = np.arange(40)
    none = np.full(40, -1)
    facts = Facts(at * 0, 1 + at // 4, 80 + at, at % 4, at * 0 + 4, at * 0 + 80, none, "target", {}, {})
    return np.isin(facts.position, bad), np.ones(40, bool), facts


def told(part, *prompts, up_after=99, monkeypatch):
    asked = []

    def check():
        asked.append(len(asked))
        if len(asked) > up_after:
            raise TimeIsUp

    monkeypatch.setattr(part_conditions, "_judged", lambda trials, stage: iter([rows_of(trials.bad)]))
    clock = SimpleNamespace(check=check, until=lambda share: nullcontext())
    own, *others = (SimpleNamespace(bad=bad, clock=clock) for bad in prompts)
    own.other_prompts = lambda: iter(others)
    conditions = PartConditions(own)
    first, again = (conditions.told("kv.target.0.v", part).where for _ in range(2))
    assert first == again
    return first, len(asked)


PAGES = [[96], [80, 96, 112], [80, 96, 112], [80, 96, 112], [81]]


def test_a_condition_is_told_from_rows_of_several_prompts(monkeypatch):
    where, asked = told(ZEROS, *PAGES, monkeypatch=monkeypatch)
    assert where.startswith("every 16th position, from 0 on") and asked == 3


@pytest.mark.parametrize("where", ["verify rows only", "the last row of every pass"])
def test_a_condition_that_is_known_is_kept_and_no_prompt_asked(where, monkeypatch):
    part = Component("rows hold zeros", 1.0, None, where)
    assert told(part, *PAGES, monkeypatch=monkeypatch) == (where, 0)


def test_a_prompt_of_enough_wrong_rows_is_not_asked_further(monkeypatch):
    part = Component("rows hold zeros", 1.0, None)
    assert told(part, [*range(80, 90)], *PAGES, monkeypatch=monkeypatch) == ("", 0)
    assert told(part, [*range(80, 120)], *PAGES, monkeypatch=monkeypatch) == ("", 0)


def test_what_the_limit_leaves_of_the_prompts_says_no_more_than_its_rows(monkeypatch):
    assert told(ZEROS, *PAGES, up_after=0, monkeypatch=monkeypatch) == (ZEROS.where, 2)


def test_what_leaves_more_than_noise_has_no_condition_of_its_own(monkeypatch):
    part = Component("a reading", 0.97, 3.0)
    assert told(part, *PAGES, monkeypatch=monkeypatch) == ("", 0)
