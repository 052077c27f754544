"""The command that repeats a gate asks it as it was asked."""

from __future__ import annotations

import shlex

from parity.cli import cli
from parity.gates.context import GateContext


def test_the_command_of_a_gate_repeats_what_its_verdict_depends_on(small_golden, tmp_path):
    def asked(**more):
        return GateContext(small_golden, "numpy", None, "bfloat16", tmp_path, **more)

    assert asked().command("taps").endswith("--device numpy --precision bfloat16")
    context = asked(histories=7, seed=3, bound=0.1)
    context._given.append(small_golden)
    words = shlex.split(context.command("taps"))
    assert words[-8:] == ["--histories", "7", "--seed", "3", "--bound", "0.1", "--run", str(small_golden.folder)]
    cli.commands["gate"].make_context("gate", words[2:])
