"""What a user's program gets wrong is a sentence of parity's, no foreign exception; float8 by its bytes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import parity

ROWS = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
NEAR = ROWS * np.float32(1 + 1e-7)
OFF = ROWS * np.float32(1.02)
MOSTLY = np.concatenate([ROWS[:1] * np.float32(1 + 1e-6), OFF[1:]])


class Ends:
    def __array__(self, *given, **options):
        raise SystemExit(0)


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda golden: parity.Bounds(l2="1", worst_row=0.1, largest=0.1), "bound l2 = '1'"),
        (lambda golden: parity.assert_parity(ROWS, ROWS.copy(), bounds={"l2": 1}), "bounds is a dict"),
        (lambda golden: parity.compare_tensors(Ends(), ROWS), "cannot take"),
        (
            lambda golden: parity.compare_tensors(NEAR.reshape((1,) * 31 + (8, 16)), ROWS),
            "actual has 33 axes: at most 32 are compared",
        ),
        (
            lambda golden: parity.compare_tensors(NEAR, ROWS, floor=ROWS * 1.5),
            "floor of a tensor .* too far from expected",
        ),
        (lambda golden: parity.compare_tensors(NEAR, ROWS, floor=NEAR), "floor of .* is actual itself"),
        (lambda golden: parity.compare_tensors(NEAR, ROWS, floor=NEAR.copy()), "floor of .* is actual itself"),
        (lambda golden: parity.compare_tensors(OFF, ROWS, floor=MOSTLY), "is actual itself in 8[0-9]% of the elements"),
        (lambda golden: parity.compare_tensors(OFF, ROWS, floor=OFF.astype(np.float16)), "is actual itself in 100%"),
        (lambda golden: parity.compare_tensors(NEAR, ROWS, floor=-ROWS), "l2 = 2, 3 times that is 6"),
        (
            lambda golden: parity.compare_tensors(NEAR, ROWS, floor=ROWS[:4]),
            r"floor of .* has shape \[4, 16\], .*\[8, 16\]$",
        ),
        (
            lambda golden: parity.compare_tensors(NEAR, ROWS, floor=ROWS + np.inf),
            "floor of .* is not finite everywhere$",
        ),
        (lambda golden: parity.compare_tensors(NEAR, ROWS, names="nofile.toml"), "^map nofile.toml cannot be read"),
        (lambda golden: parity.run_device("nix", "numpy"), "golden is a str: parity.open_golden"),
        (lambda golden: parity.compare_dumps(golden, "nix"), "run is a str: parity.read_dump"),
        (lambda golden: parity.export_dump("nix", "x.npz"), "dump is a str: parity.read_dump"),
        (lambda golden: parity.verify_golden("nix"), "golden is a str"),
        (lambda golden: parity.diagnose_device("nix"), "golden is a str"),
        (lambda golden: parity.reduce_failure("nix"), "golden is a str"),
        (lambda golden: parity.run_device(golden, mode="sideways"), "mode 'sideways'"),
        (lambda golden: parity.gate_device(golden, only=[]), "names no gate"),
    ],
)
def test_a_mistake_is_one_sentence(mistake, said, shallow_golden):
    with pytest.raises(parity.UsageError, match=said):
        mistake(shallow_golden)


FLOAT8 = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]


@pytest.mark.parametrize("name", FLOAT8)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_bytes_of_float8_are_exact(name, library):
    made = ROWS.astype(getattr(ml_dtypes, name))
    wrong = made.copy()
    wrong.view(np.uint8)[3, 5] ^= 1
    if library == "torch":
        import torch

        made, wrong = (torch.from_numpy(one.view(np.uint8).copy()).view(getattr(torch, name)) for one in (made, wrong))
    copied = made.clone() if library == "torch" else made.copy()
    assert parity.compare_tensors(copied, made)
    found = parity.compare_tensors(wrong, made)
    assert not found and "1 of 128 elements differ" in str(found) and name in str(found)


@pytest.mark.parametrize("check_dtype", [True, False])
def test_bytes_of_two_formats_are_not_compared(check_dtype):
    made = ROWS.astype(ml_dtypes.float8_e4m3fn)
    for other in (ml_dtypes.float8_e5m2, np.uint8):
        found = parity.compare_tensors(made.view(other), made.copy(), check_dtype=check_dtype)
        assert not found and "expected float8_e4m3fn" in str(found)


@pytest.mark.parametrize("name", FLOAT8)
def test_float8_that_is_no_number_fails_on_both_sides_too(name):
    made = ROWS.astype(getattr(ml_dtypes, name))
    made.reshape(-1)[3] = np.nan
    found = parity.compare_tensors(made, made.copy())
    assert not found and "1 elements are NaN in actual; 1 elements are NaN in expected" in str(found)
