"""An empty name, as an unset variable in a script leaves, is an error wherever a name is taken."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from parity.cli import cli
from parity.errors import UsageError
from parity.nightly.matrix import read_matrix
from parity.references.vllm_capture.environment import find_python


def takers(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Parameter]]:
    """Every parameter of every command that takes a value, with the command's path."""
    for parameter in command.params:
        if isinstance(parameter, click.Argument) or not (parameter.is_flag or parameter.count or parameter.is_eager):
            yield path, parameter
    for name, below in getattr(command, "commands", {}).items():
        yield from takers(below, (*path, name))


TAKERS = list(takers(cli))


def given(parameter: click.Parameter, empty: str) -> Iterator[list[str]]:
    """How a command line gives this parameter an empty value."""
    if isinstance(parameter, click.Argument):
        yield [empty]
        return
    for name in parameter.opts:
        yield [name, empty]
        if name.startswith("--"):
            yield [f"{name}={empty}"]


def test_every_command_takes_something():
    assert len(TAKERS) > 100 and {path[0] for path, _ in TAKERS} >= set(cli.commands) - {"demo"}


@pytest.mark.parametrize("empty", ["", "  "], ids=["empty", "blank"])
def test_an_empty_value_is_refused_whatever_takes_it(empty, parity):
    let_in = []
    for path, parameter in TAKERS:
        for words in given(parameter, empty):
            found = parity(*path, *words)
            if found.code != 2 or "is empty" not in found.err or found.err.count("\n") != 1 or found.out:
                let_in.append((*path, *words))
    assert not let_in


def test_the_sentence_names_the_option(parity):
    assert "--device is empty" in parity("diff", "--device", "").err
    assert "--golden is empty" in parity("gate", "--golden=").err
    assert "an argument is empty" in parity("diagnose", "").err


def test_a_variable_that_is_set_to_nothing_is_refused(parity, monkeypatch):
    monkeypatch.setenv("PARITY_VLLM_PYTHON", " ")
    with pytest.raises(UsageError, match=r"\$PARITY_VLLM_PYTHON is set to an empty name"):
        find_python(None)
    monkeypatch.setenv("PARITY_HOME", "")
    found = parity("diff")
    assert found.code == 2 and "$PARITY_HOME is set to an empty name" in found.err


MATRIX = """
k = [4]
[cases.chat]
target = "target"
drafter = "drafter"
prompts = "prompts.jsonl"
golden = "golden"
max_new_tokens = 4
[cases.other]
target = "target"
prompts = "prompts.jsonl"
max_new_tokens = 4
[devices]
numpy = "device"
[families.peagle]
drafter = "family"
[policies.bfloat16]
bounds = "pcc"
"""


@pytest.mark.parametrize("name", ["target", "drafter", "prompts.jsonl", "golden", "device", "family", "pcc"])
def test_a_matrix_with_an_empty_name_is_refused(name, tmp_path):
    matrix = tmp_path / "matrix.toml"
    matrix.write_text(MATRIX)
    assert read_matrix(matrix).cases["chat"].golden == "golden"
    for empty in ("", " "):
        matrix.write_text(MATRIX.replace(f'"{name}"', f'"{empty}"', 1))
        with pytest.raises(UsageError, match="is empty"):
            read_matrix(matrix)
