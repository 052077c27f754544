"""Weights that stay in their files: the same bits, and no large matrix is ever widened whole."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from parity import device
from parity.device import mxfp4, stored
from parity.device.engines import stored as stored_numpy
from parity.device.engines.stored import Stored
from parity.errors import UsageError
from tests.sample import by_night

IDS = range(100, 140)


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    monkeypatch.setattr(stored, "LARGE", 0)


@pytest.mark.parametrize(("target", "precision"), [("target-mxfp4", "bfloat16"), ("target", "float32")])
def test_it_emits_what_weights_in_memory_do_and_widens_no_matrix_whole(target, precision, tiny, monkeypatch):
    pair = dict(target=tiny / target, drafter=tiny / "drafter", k=4, precision=precision)
    widened, part = [], Stored.part

    def seen(self, index):
        widened.append((self.shape, np.size(taken := part(self, index))))
        return taken

    monkeypatch.setattr(Stored, "part", seen)
    monkeypatch.setattr("parity.device.engines.stored.PART", 2**14)
    assert device.load(**pair, weights="files").generate(IDS, 8) == device.load(**pair).generate(IDS, 8)
    matrices = {shape: most for shape, most in widened if np.prod(shape) > 2**16}
    assert matrices and all(most <= np.prod(shape) // 4 for shape, most in matrices.items())


def test_a_packed_expert_is_what_all_of_them_hold_of_it():
    random = np.random.default_rng(0)
    blocks, scales = random.integers(0, 256, (5, 6, 2, 16), np.uint8), random.integers(120, 130, (5, 6, 2), np.uint8)
    packed, whole = mxfp4.Packed(blocks, scales), mxfp4.decode(blocks, scales)
    assert packed.shape == whole.shape
    assert np.array_equal(packed[3], whole[3]) and np.array_equal(packed[...], whole)
    assert np.array_equal(packed[..., 1::2][np.array([4, 0])], whole[[4, 0], :, 1::2])


def test_float16_in_a_file_is_rounded_to_the_dtype_of_the_pass(tmp_path):
    written = np.memmap(tmp_path / "w", np.float16, "w+", shape=(2, 3))
    written[:] = 1 + 2.0**-10
    kept = stored_numpy.engine().array(written, ml_dtypes.bfloat16)
    assert isinstance(kept, Stored) and (kept.held == 1).all()


@pytest.fixture(scope="module")
def xla():
    pytest.importorskip("jax")
    from parity.device.engines import stored_xla

    return stored_xla


@by_night
@pytest.mark.parametrize(("target", "precision"), [("target-mxfp4", "bfloat16"), ("target", "float32")])
def test_xla_emits_what_weights_in_memory_do(target, precision, three_layers, xla, monkeypatch):
    monkeypatch.setattr(xla.products, "PART", 2**14)
    pair = dict(target=three_layers / target, drafter=three_layers / "drafter", k=4, precision=precision, engine="xla")
    read, held = [], xla.products.read
    monkeypatch.setattr(xla.products, "read", lambda source, layout: read.append(layout) or held(source, layout))
    stored_device = device.load(**pair, weights="files")
    assert not read  # none before it is used
    assert stored_device.generate(IDS, 6) == device.load(**pair).generate(IDS, 6)
    assert {"columns", "packed" if target == "target-mxfp4" else "rows"} <= {*read}


def test_a_layer_alone_is_opened_without_reading_its_matrices(tiny, xla, monkeypatch):
    monkeypatch.setattr(xla.products, "read", lambda *_: pytest.fail("a matrix was read"))
    layer = device.layered(tiny / "target-mxfp4", tiny / "drafter", 4, engine="xla", weights="files")
    layer.open(3)
    (held,) = layer._target.layers
    matrices = ("q", "k", "v", "o", "router", "gate", "up", "down")
    assert all(isinstance(held[name], xla.Stored) for name in matrices)
    with pytest.raises(pytest.fail.Exception):
        held["q"].whole()


def test_a_program_takes_weights_as_they_are_stored(xla, tmp_path):
    random, engine = np.random.default_rng(0), xla.engine()
    blocks, scales = random.integers(0, 256, (5, 6, 2, 16), np.uint8), random.integers(0, 255, (5, 6, 2), np.uint8)
    packed, whole = engine.array(mxfp4.Packed(blocks, scales)), mxfp4.decode(blocks, scales)
    assert packed.held.dtype == np.uint8 and packed.held.size == blocks.size + scales.size
    assert np.array_equal(np.asarray(packed.whole().held), np.where(np.abs(whole) < 2.0**-126, 0, whole))
    table = np.memmap(tmp_path / "w", ml_dtypes.bfloat16, "w+", shape=(7, 4))
    table[:] = random.standard_normal((7, 4))
    for weight, bare in ((engine.array(table), np.array(table)), (engine.array(table.T), np.array(table.T))):
        assert weight.held.dtype == table.dtype
        assert np.array_equal(engine.host(np.take(weight, np.array([2, 0]), axis=0)), bare[[2, 0]])
        rows = random.standard_normal((1, 3, len(bare))).astype(np.float32)
        product = engine.host(np.matmul(engine.array(rows), weight.astype(np.float32)))
        np.testing.assert_allclose(product, rows @ bare.astype(np.float32), atol=1e-5)


@pytest.mark.parametrize("options", [dict(lanes=2), dict(tp=2), dict(weights="disk")])
def test_what_it_does_not_go_with_is_refused(options, tiny):
    with pytest.raises(UsageError, match=r"^weights"):
        device.load(tiny / "target", tiny / "drafter", 4, **dict(weights="files") | options)
