"""Contexts of the positions gate, and the sampling gate made short."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from parity.builders import builder
from parity.errors import NotOffered
from parity.gates.context import GateContext
from parity.gates.sampling import gate as sampling
from parity.gates.sampling import lanes as sampling_lanes
from parity.gates.sampling import rule as sampling_rule
from tests.gates.asked import Asked
from tests.gates.positions import LONG, SHORT, shortened
from tests.sample import WHOLE

explore = import_module("parity.gates.rollback.explore")  # by module: the package's own `explore` is the function


@pytest.fixture(scope="session")
def short_configs(tmp_path_factory) -> Path:
    return shortened(tmp_path_factory.mktemp("short"), SHORT)


@pytest.fixture(scope="session")
def long_configs(tmp_path_factory) -> Path:
    return shortened(tmp_path_factory.mktemp("long"), LONG)


@pytest.fixture
def gate_checks(shallow_golden, tmp_path):
    """A gate's checks of a device, by name, made as far as they are asked for."""

    def run(gate, name, golden=shallow_golden, limits=None):
        context = GateContext(golden, name, builder(name, golden, limits), "bfloat16", tmp_path)
        return Asked(context, gate)

    return run


@pytest.fixture
def positions_context(short_configs, three_layers, request, monkeypatch):
    """Make a context of a rotation, or of a factory; the golden is as much of one as this gate reads."""
    if "long_configs" in request.fixturenames:  # the first config shows the fault; the others only have to be read
        monkeypatch.setattr("parity.gates.positions.SPREAD", SHORT)

    def make(rotate=None, load=None, configs=short_configs, pair=("gpt-oss-20b", "p-eagle-20b")) -> GateContext:
        tiny = three_layers
        target, drafter = (tiny / "target", tiny / "drafter") if load else (configs / name for name in pair)
        sides = {"target": SimpleNamespace(path=target), "drafter": SimpleNamespace(path=drafter)}
        model = SimpleNamespace(**sides, family="p-eagle")
        case = SimpleNamespace(k=4, prompts=[SimpleNamespace(ids=[1266, 300])])
        golden = SimpleNamespace(manifest=SimpleNamespace(model=model, case=case), folder=Path("golden"))

        def build(precision, **options):
            if load is None:
                raise NotOffered("no passes")
            return load(target=target, drafter=drafter, precision=precision, **options)

        return GateContext(
            golden, "package.module:factory", build, "bfloat16", Path("runs"), rotate=rotate, configs=configs
        )

    return make


@pytest.fixture
def few_histories(monkeypatch):
    """By day the rollback gate plays the histories of one round, and every kind of disturbance once."""
    cases = explore._cases

    def kept(case) -> bool:
        rounds = case[0].rounds
        return len(rounds) == 1 or any(
            one.poison is not None or (one.error and one.error.where == 999) for one in rounds
        )

    if not WHOLE:
        monkeypatch.setattr(explore, "_cases", lambda *of: [*filter(kept, cases(*of))])


@pytest.fixture
def few_samples(monkeypatch):
    """One prompt and a few rounds: enough to see it red, and cheap."""
    monkeypatch.setattr(sampling, "PROMPTS", 1)
    monkeypatch.setattr(sampling, "BUDGET", 8)
    monkeypatch.setattr(sampling, "ROUNDS", 0)
    monkeypatch.setattr(sampling_lanes, "LANES", 2)
    monkeypatch.setattr(sampling_rule, "FINE", 256)
    monkeypatch.setattr(sampling, "FINE_BOUND", 1 / 256 + 1e-5)
