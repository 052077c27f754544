"""The command over a run that is traced once."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from parity.builders import inventory
from parity.bundled import published_pair
from parity.cli import cli


@pytest.fixture(scope="session")
def traced():
    """Of a run of two rounds, traced once."""
    return inventory(*published_pair("tiny"), k=4, prompt=16, tokens=6, emitted=3)


@pytest.fixture
def ops(traced, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("parity.builders.inventory", lambda *_, **run: traced)
    return lambda *more: CliRunner().invoke(cli, ["ops", "--phase", "draft", *map(str, more)])
