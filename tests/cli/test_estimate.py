"""A long command says before it starts how long it takes, and on what that was measured."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parity.estimate import estimate, target_rows


def golden(prompts: int, ids: int, rounds: int, k: int = 4):
    each = SimpleNamespace(ids=(0,) * ids, generation=SimpleNamespace(acceptance_length=(1,) * rounds))
    return SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(prompts=(each,) * prompts, k=k)))


def test_the_rows_are_the_prompts_and_those_of_every_verify():
    assert target_rows(golden(2, 100, 3)) == 2 * (100 + 3 * 5)


def test_it_grows_with_the_golden_and_short_ones_are_not_announced():
    assert estimate("diff", golden(1, 10, 2), "numpy") == ""
    whole, more = (estimate("diff", golden(prompts, 125, 20), "numpy") for prompts in (24, 240))
    assert "24 prompts, 5,400 rows: about 50 seconds" in whole and "minutes" in more


@pytest.mark.parametrize("device", ["xla", "my_port:load"])
def test_another_device_is_told_apart_from_what_was_measured(device):
    assert "sets its own pace" in estimate("gate", golden(2, 100, 3), device)
    assert "sets its own pace" not in estimate("gate", golden(2, 100, 3), "numpy")
