"""What a part of the wrong rows holds is said where no reading is, and behind one only where most of them do."""

from __future__ import annotations

import pytest

from parity.api import run_device
from parity.compare.origins import HeldInstead
from parity.diagnose import components as read
from parity.diagnose.components.wrong import Component
from parity.golden.trust import trusted
from parity.golden.views import GoldenSlice

NEAR = Component("a reading", 0.99, 3.0)


@pytest.fixture(scope="module")
def wrong(shallow_golden, tmp_path_factory):
    golden, out = GoldenSlice(trusted(shallow_golden), 0, 1), tmp_path_factory.mktemp("run") / "run"
    return golden, run_device(
        golden, "parity.device.faults:load_embed_scaled", "local", "bfloat16", out=out, free=False
    )


@pytest.mark.parametrize(
    ("share", "readings", "told"),
    [(0.55, [], True), (0.45, [], False), (0.55, [[NEAR]], False), (0.95, [[NEAR]], True)],
)
def test_others_values_in_a_part_of_the_rows_are_said_where_nothing_else_is(share, readings, told, wrong, monkeypatch):
    held = HeldInstead("some wrong rows hold what belongs 1 round before", share)
    monkeypatch.setattr(read, "held_instead", lambda *of: held)
    monkeypatch.setattr(read, "_readings", lambda *of: readings)
    found = [one.says for one in read.components(*wrong, "target.embed")]
    assert found == ([held.says] if told else [one.says for group in readings for one in group])
