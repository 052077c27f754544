"""A folder that is not what a command needs: the mistake itself is told, whatever else is missing."""

from __future__ import annotations

import pytest

COMMANDS = {"diff": ("diff",), "diagnose": ("diagnose",), "gate": ("gate", "--run"), "report": ("report",)}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_that_is_not_there_is_told_before_a_golden_is_looked_for(command, parity, tmp_path):
    ended = parity(*COMMANDS[command], tmp_path / "nofile")
    assert (ended.code, ended.out) == (2, "") and ended.err.startswith(f"parity: {tmp_path / 'nofile'}: there is no ")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_golden_in_the_place_of_a_run_is_told_before_another_is_looked_for(command, parity, shallow_golden):
    ended = parity(*COMMANDS[command], shallow_golden.folder)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"parity: {shallow_golden.folder} is a golden") and "no golden of" not in ended.err


def test_a_golden_that_is_not_there_is_told(parity, tmp_path):
    ended = parity("diff", "--golden", tmp_path / "nofile")
    assert ended.code == 2 and ended.err.startswith(f"parity: {tmp_path / 'nofile'}: there is no such folder")
