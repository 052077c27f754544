"""A pair of few layers, for gates that play a device a thousand times over; contexts of the positions gate."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from parity.errors import NotOffered
from parity.gates.context import GateContext
from parity.golden.store import Dump
from tests.gates.positions import LONG, SHORT, shortened
from tests.sample import WHOLE

LAYERS = 2
"""Of the target, one with the sliding window and one without, and of the drafter."""


@pytest.fixture(scope="session")
def shallow_golden(request, tiny, remake_small_golden, once_for_all) -> Dump:
    """The small golden of a pair of two layers each: a third of a pass of the tiny pair, which runs whole by night."""
    if WHOLE:
        return request.getfixturevalue("small_golden")

    def make(folder: Path) -> None:
        target, drafter = folder / "target", folder / "drafter"
        _shallow(tiny / "target", target, "model.layers.", num_hidden_layers=LAYERS, layer_types=_kinds(tiny))
        taps = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
        _shallow(tiny / "drafter", drafter, "layers.", num_hidden_layers=LAYERS, eagle_config=taps)
        remake_small_golden(folder / "golden", target=target, drafter=drafter)

    return Dump(once_for_all("shallow", make) / "golden")


@pytest.fixture(scope="session")
def short_configs(tmp_path_factory) -> Path:
    return shortened(tmp_path_factory.mktemp("short"), SHORT)


@pytest.fixture(scope="session")
def long_configs(tmp_path_factory) -> Path:
    return shortened(tmp_path_factory.mktemp("long"), LONG)


@pytest.fixture
def positions_context(short_configs, tiny, request, monkeypatch):
    """Make a context of a rotation, or of a factory; the golden is as much of one as this gate reads."""
    if "long_configs" in request.fixturenames:  # the first config shows the fault; the others only have to be read
        monkeypatch.setattr("parity.gates.positions.SPREAD", SHORT)

    def make(rotate=None, load=None, configs=short_configs, pair=("gpt-oss-20b", "p-eagle-20b")) -> GateContext:
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


def _kinds(tiny: Path) -> list[str]:
    return json.loads((tiny / "target" / "config.json").read_text())["layer_types"][:LAYERS]


def _shallow(whole: Path, out: Path, prefix: str, **changes: object) -> None:
    """A checkpoint without the layers behind the first ones."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(whole, out, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"))
    config = json.loads((whole / "config.json").read_text()) | changes
    (out / "config.json").write_text(json.dumps(config))
    tensors = {name: value for path in sorted(whole.glob("*.safetensors")) for name, value in load_file(path).items()}
    kept = {name: value for name, value in tensors.items() if _layer(name, prefix) < LAYERS}
    save_file(kept, out / "model.safetensors", metadata={"format": "pt"})


def _layer(name: str, prefix: str) -> int:
    return int(name.removeprefix(prefix).split(".")[0]) if name.startswith(prefix) else -1
