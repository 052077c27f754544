"""The operations of somebody's own kernels, recorded and tried."""

from __future__ import annotations

import numpy as np
import pytest

from parity import device
from parity.ops.harness import try_operation
from parity.ops.record import record
from tests.ops import own_program


def test_everything_that_a_kernel_does_is_noted_once():
    said = [f"{one} -> {', '.join(map(str, one.results))}" for one in own_program.operations()]
    for line in (
        "astype(bfloat16[6,9], float32) -> float32[6,9]",
        "setitem(float32[6,9], bool[6,9], -1e+30) -> float32[6,9]",
        "max(float32[6,9], axis=-1, keepdims=True) -> float32[6,1]",
        "subtract(float32[6,9], float32[6,1]) -> float32[6,9]",
        "exp(float32[6,9]) -> float32[6,9]",
        "sum(float32[6,9], axis=-1, keepdims=True) -> float32[6,1]",
        "divide(float32[6,9], float32[6,1]) -> float32[6,9]",
        "getitem(int32[6,2], [:, 0]) -> int32[6]",
        "setitem(bfloat16[9,12], int32[6], bfloat16[6,12]) -> bfloat16[9,12]",
        "transpose(bfloat16[9,12], 1, 0) -> bfloat16[12,9]",
        "reshape(bfloat16[12,9], 2, 54) -> bfloat16[2,54]",
    ):
        assert said.count(line) == 1, (line, said)
    assert not [line for line in said if line.startswith("matmul")]


def test_what_is_recorded_passes_where_it_is_right():
    def right(operation, *arrays):
        made = operation.apply(*arrays)
        return made.astype(np.float32) if made.dtype == np.float64 else made

    results = [try_operation(one, right, 0, 1 << 20) for one in own_program.operations()]
    assert {one.verdict for one in results} == {"pass"}, [one.why for one in results if one.why]


def test_a_masked_assignment_of_its_own_program_is_found(ops):
    found = ops("--device", "tests.ops.own_program:load")
    assert found.exit_code == 1 and "1 of" in found.stdout.splitlines()[-1]
    assert "first setitem(float32[6,9], bool[6,9], -1e+30)" in found.stdout.splitlines()[-1]


def test_a_kernel_runs_as_without_being_watched_and_changes_nothing_of_the_callers():
    given = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    seen = []

    def kernel(parts, offset):
        x = parts["x"][0]
        x[0] = offset
        y = (x + 1).mean(axis=0) if x.ndim > 1 else x
        seen.append(np.asarray(np.concatenate([y, x[-1]])))

    noted = record(kernel, {"x": [given]}, 7)
    assert np.array_equal(given, np.arange(12).reshape(3, 4))
    assert np.allclose(seen[0], [*np.mean([[8, 8, 8, 8], [5, 6, 7, 8], [9, 10, 11, 12]], axis=0), 8, 9, 10, 11])
    assert [one.name for one in noted] == ["setitem", "add", "mean", "getitem", "concatenate"]


@pytest.mark.parametrize(
    ("kernel", "word"), [(lambda x: np.median(x), "median"), (lambda x: x.astype(np.float16), "float16")]
)
def test_what_has_no_rule_is_inconclusive(kernel, word):
    (operation,) = record(kernel, np.ones((3, 4), np.float32))
    found = try_operation(operation, device.operate, 0, 1 << 20)
    assert found.verdict == "inconclusive" and found.why == f"there is no rule for {word}"
