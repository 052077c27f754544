"""Maps of error by layer and position: a defect shows in its layer and at its position, and nowhere else."""

import numpy as np
import pytest

from parity.builders import builder
from parity.compare.breakdown import heat
from parity.drive import run_device
from parity.golden.store import Dump
from parity.golden.views import PromptSlice
from parity.run_request import RunRequest

LAYER, POSITION = 3, 17


class Bent:
    """A device one stage of which is off by a tenth, in one layer and at one position."""

    def __init__(self, device, broken: float | None = None):
        self.device, self.broken = device, broken

    def describe(self):
        return self.device.describe()

    def prefill(self, ids, budget, tap):
        return self.device.prefill(ids, budget, self.bent(tap))

    def __getattr__(self, name):
        return getattr(self.device, name)

    def bent(self, tap):
        def bend(stage, value):
            if stage == f"target.layers.{LAYER}.attn_out":
                value = np.array(value)
                value[POSITION] = value[POSITION] * np.asarray(1.1, value.dtype) if self.broken is None else self.broken
            return tap(stage, value)

        return bend


@pytest.fixture(scope="module")
def maps(small_golden, tmp_path_factory):
    golden = PromptSlice(small_golden, 0, 1)

    def of(wrap, precision="bfloat16", columns=10_000):
        device = wrap(builder("numpy", golden)(precision=precision))
        out = tmp_path_factory.mktemp("heat") / "run"
        run = Dump(
            run_device(
                RunRequest(device, golden, "local", ("target.layers.*.attn_out", "target.*.experts"), out, free=False)
            )
        )
        return {family: (layers, edges) for family, layers, edges in heat(golden, run, columns)}

    return of


def test_a_defect_shows_in_its_layer_and_at_its_position(maps):
    layers, positions = maps(Bent)["target.layers.{l}.attn_out"]
    clean, _ = maps(lambda device: device)["target.layers.{l}.attn_out"]
    assert list(positions[:3]) == [0, 1, 2] and set(layers) == set(range(8))
    moved = {
        (layer, int(column)) for layer in layers for column in np.flatnonzero(~_alike(layers[layer], clean[layer]))
    }
    assert moved == {(LAYER, POSITION)}
    assert layers[LAYER][POSITION] > 3


def _alike(one, other):
    return np.isclose(one, other, equal_nan=True)


def test_columns_pool_their_positions_and_choices_have_no_map(small_golden, maps):
    found = maps(lambda device: device, columns=10)
    assert set(found) == {"target.layers.{l}.attn_out"}
    layers, edges = found["target.layers.{l}.attn_out"]
    (case,) = PromptSlice(small_golden, 0, 1).manifest.case.prompts
    longest = len(case.ids) + len(case.generation.emitted)
    assert edges.tolist() == list(range(0, longest, -(-longest // 10)))
    assert {len(row) for row in layers.values()} == {len(edges)}


def test_a_value_that_is_no_number_makes_its_column_infinite(maps):
    layers, _ = maps(lambda device: Bent(device, broken=np.nan))["target.layers.{l}.attn_out"]
    assert layers[LAYER][POSITION] == np.inf and np.isfinite(layers[LAYER][POSITION + 1])


def test_float32_is_relative_to_the_golden(maps):
    layers, _ = maps(lambda device: device, "float32")["target.layers.{l}.attn_out"]
    assert 0 < np.nanmax(layers[LAYER]) < 1e-4
