"""What is rewritten in a lowered module before XLA:CPU can run it."""

import numpy as np
import pytest

pytest.importorskip("jax", reason="jax is not installed: pip install 'parity-harness[nkipy]'")

from jax.extend.backend import get_backend, get_compile_options

from parity.device.engines.traced.lowering import buffer, replace_topk
from parity.errors import UsageError

# As NKIPy's topk over the last axis arrives here.
MODULE = """module @f {
  func.func @main(%arg0: tensor<3x8xf32>) -> (tensor<3x4xf32>, tensor<3x4xui32>) {
    %0 = stablehlo.custom_call @AwsNeuronTopK(%arg0) {api_version = 0 : i32, backend_config = "4", xla_shape = "?"} : \
(tensor<3x8xf32>) -> tuple<tensor<3x4xf32>, tensor<3x4xui32>>
    %1 = stablehlo.get_tuple_element %0[0] : (tuple<tensor<3x4xf32>, tensor<3x4xui32>>) -> tensor<3x4xf32>
    %2 = stablehlo.get_tuple_element %0[1] : (tuple<tensor<3x4xf32>, tensor<3x4xui32>>) -> tensor<3x4xui32>
    return %1, %2 : tensor<3x4xf32>, tensor<3x4xui32>
  }
}
"""


def run(text, *arrays):
    client = get_backend("cpu")
    program = client.compile_and_load(text, client.local_devices()[:1], get_compile_options(1, 1))
    return [np.asarray(one) for one in program.execute([buffer(one, client.local_devices()[0]) for one in arrays])]


def test_topk_becomes_a_stable_descending_sort():
    x = np.random.default_rng(0).integers(0, 4, (3, 8)).astype(np.float32)  # many ties
    x[1, 2:5] = [-np.inf, np.inf, -0.0]
    values, places = run(replace_topk(MODULE), x)
    expected = np.argsort(-x, axis=-1, kind="stable")[:, :4]
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis=-1))


def test_an_unstable_or_ascending_sort_would_be_seen():
    x = np.zeros((3, 8), np.float32)
    x[:, -1] = -1
    changed = replace_topk(MODULE).replace("compare GT", "compare LT")
    assert changed != replace_topk(MODULE)
    assert run(changed, x)[1].tolist() != run(replace_topk(MODULE), x)[1].tolist()


def test_every_topk_of_a_module_is_replaced():
    twice = MODULE.replace("    %1 =", MODULE.split("\n")[2].replace("%0", "%9") + "\n    %1 =")
    text = replace_topk(twice)
    assert "custom_call" not in text
    assert text.count("stablehlo.sort") == 2
    run(text, np.zeros((3, 8), np.float32))


def test_what_nothing_replaces_is_refused():
    with pytest.raises(UsageError, match="AwsNeuronCustomOp"):
        replace_topk(MODULE.replace("AwsNeuronTopK", "AwsNeuronCustomOp"))
