"""MXFP4 decoding, value by value, and through the loader."""

import numpy as np
import pytest

from parity import device
from parity.device import mxfp4

MAGNITUDES = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


def scalar_decode(blocks, scales, expert, into, out):
    """One weight W[expert, in, out], from the description of the format alone."""
    byte = int(blocks[expert, out, into // 32, into % 32 // 2])
    code = byte % 16 if into % 2 == 0 else byte // 16
    value = MAGNITUDES[code % 8] * (-1 if code >= 8 else 1)
    return value * 2.0 ** (int(scales[expert, out, into // 32]) - 127)


def random_blocks(experts, out, into, seed=0):
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (experts, out, into // 32, 16), np.uint8)
    return blocks, random.integers(120, 130, (experts, out, into // 32), np.uint8)


def test_every_value_is_that_of_a_scalar_decode():
    blocks, scales = random_blocks(2, 5, 64)
    decoded = mxfp4.decode(blocks, scales)
    assert decoded.shape == (2, 64, 5)
    for expert, into, out in np.ndindex(decoded.shape):
        assert decoded[expert, into, out] == scalar_decode(blocks, scales, expert, into, out)


def test_a_square_matrix_is_transposed_all_the_same():
    blocks, scales = random_blocks(1, 32, 32)
    assert mxfp4.decode(blocks, scales)[0, 3, 7] == scalar_decode(blocks, scales, 0, 3, 7)


def pack(tensors, name, out, into, seed):
    blocks, scales = random_blocks(5, out, into, seed)
    tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales - 2
    return mxfp4.decode(blocks, scales - 2)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_packed_checkpoint_loads_as_the_plain_one_with_its_decoded_weights(checkpoints, prompts, precision):
    plain = {}

    def packed(tensors):
        for layer in range(6):
            for part, out, into in (("gate_up_proj", 64, 64), ("down_proj", 64, 32)):
                name = f"model.layers.{layer}.mlp.experts.{part}"
                del tensors[name]
                plain[name] = pack(tensors, name, out, into, seed=layer)

    config = {"quantization_config": {"quant_method": "mxfp4"}}
    first = device.load(*checkpoints(config, edit_target=packed, shards=3), 3, precision=precision)
    second = device.load(*checkpoints(edit_target=lambda tensors: tensors.update(plain)), 3, precision=precision)
    assert first.generate(prompts[1], 12) == second.generate(prompts[1], 12)
    np.testing.assert_array_equal(first.target.caches[5][1].held, second.target.caches[5][1].held)
