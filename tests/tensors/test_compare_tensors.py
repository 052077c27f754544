"""Two sides compared without a golden: what passes, what fails, and that nothing missing ever passes."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import parity
from parity.errors import UsageError
from parity.tensors.judge import NAMES
from parity.tensors.presets import PRESETS

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def values(shape=(64, 128), dtype=np.float32, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def noisy(expected: np.ndarray, relative: float) -> np.ndarray:
    """With a normal error of this relative L2."""
    noise = np.random.default_rng(1).standard_normal(expected.shape)
    noise *= relative * np.linalg.norm(expected.astype(np.float64)) / np.linalg.norm(noise)
    return (expected.astype(np.float64) + noise).astype(expected.dtype)


@pytest.mark.parametrize("dtype", list(PRESETS), ids=str)
@pytest.mark.parametrize("shape", [(64, 128), (500,), (2, 3, 4, 50)], ids=str)
def test_half_the_bound_passes_and_twice_fails(dtype, shape):
    expected, bound = values(shape, dtype), PRESETS[dtype].bounds.l2
    assert parity.compare_tensors(noisy(expected, bound / 2), expected)
    report = parity.compare_tensors(noisy(expected, bound * 2), expected)
    assert not report and report.verdict == "fail" and "relative L2 is off by" in str(report)


@pytest.mark.parametrize("dtype", list(PRESETS), ids=str)
def test_one_wrong_row_and_one_wrong_element_fail_where_the_whole_does_not_show_them(dtype):
    expected = values((4096, 512), dtype)
    row, element = (noisy(expected, 1e-15) for _ in range(2))
    row[17] = noisy(row[17], 2 * PRESETS[dtype].bounds.worst_row)
    element[17, 5] += np.asarray(3 * PRESETS[dtype].bounds.largest).astype(dtype)
    for actual, reason in ((row, "worst row [17]"), (element, "largest element")):
        (result,) = parity.compare_tensors(actual, expected).results
        assert [said for said in result.reasons if said.startswith(reason)] and result.first_bad.index[0] == 17
        assert not [said for said in result.reasons if said.startswith("relative L2")]


def test_an_outlier_is_off_by_its_own_size():
    """A channel a thousand times its row: one rounding of it is a multiple of the row's bound and no defect."""
    expected = values()
    expected[:, 3] *= 10_000
    actual = expected.astype(BFLOAT16)
    assert parity.compare_tensors(actual, expected, check_dtype=False)
    (result,) = parity.compare_tensors(actual, expected, check_dtype=False).results
    assert result.largest < 2**-8


def test_the_message_names_tensor_worst_element_first_bad_one_and_ulp():
    expected = values(dtype=BFLOAT16)
    actual = expected.copy()
    actual[2, 5], actual[7, 1] = expected[2, 5] + 3, expected[7, 1] + 9
    with pytest.raises(AssertionError) as raised:
        parity.assert_parity({"hidden": actual, "fine": expected.copy()}, {"hidden": expected, "fine": expected})
    said = str(raised.value)
    assert said.startswith("actual does not match expected: 1 of 2 tensors out of bounds\nhidden bfloat16[64, 128]: ")
    assert "worst element [7, 1]: expected " in said and "first bad element [2, 5]: expected " in said
    assert " ULP of bfloat16" in said and " of it = " in said and "not seen: bfloat16: what stays below 2 %" in said


def test_ulp_are_counted_in_the_coarser_dtype():
    expected = np.array([1.0, 2.0, 4.0], np.float32)
    actual = np.array([1.0, 2.0, 5.0], BFLOAT16)
    (result,) = parity.compare_tensors(actual, expected, check_dtype=False).results
    assert (result.worst.ulp, result.worst.unit, result.worst.index) == (32, "bfloat16", (2,))


ONE = values()
NOTHING = {
    "no tensor": ({}, {}, "nothing is compared"),
    "missing": ({}, {"x": ONE}, "x is missing"),
    "surplus": ({"x": ONE.copy(), "y": ONE}, {"x": ONE}, "y is surplus"),
    "array and mapping": (ONE.copy(), {"x": ONE}, "x is missing"),
    "shape": (ONE[:-1].copy(), ONE, "shape [63, 128]"),
    "broadcast": (ONE[:1].copy(), ONE, "shape [1, 128]"),
    "dtype": (ONE.astype(np.float64), ONE, "dtype float64"),
    "integers": (np.arange(4), np.arange(4.0), "dtype int64"),
    "NaN": (np.where(ONE > 2, np.nan, ONE).astype(np.float32), ONE, "NaN in actual"),
    "both NaN": (np.full(3, np.nan), np.array([1, np.nan, 2.0]), "NaN in expected"),
    "infinite": (np.array([1, np.inf]), np.array([1, np.inf]), "infinite in expected"),
    "constant": (np.ones(9), np.ones(9), "all of expected is 1.0"),
    "zeros": (np.zeros(9), np.zeros(9), "all of expected is 0.0"),
    "constant integers": (np.full(9, 7), np.full(9, 7), "all of expected is 7"),
    "empty": (np.zeros((0, 3)), np.zeros((0, 3)), "no element"),
    "itself": (ONE, ONE, "the same memory"),
    "overflow": (np.array([1e200, 2e200]), np.array([1e200, 2e200]), "overflow"),
    "float8": (ONE.astype(ml_dtypes.float8_e4m3fn).astype(np.float16), ONE.astype(bool), "not compared"),
}


@pytest.mark.parametrize(("actual", "expected", "words"), NOTHING.values(), ids=NOTHING)
@pytest.mark.filterwarnings("ignore:overflow")
def test_missing_evidence_fails(actual, expected, words):
    report = parity.compare_tensors(actual, expected)
    assert not report and report.verdict == ("fail" if report.results else "inconclusive") and words in str(report)
    json.dumps(report.to_dict(), allow_nan=False)
    with pytest.raises(AssertionError, match="does not match"):
        parity.assert_parity(actual, expected)


NO_ARRAYS = {
    "list": [1.0, 2.0],
    "None": None,
    "number": 1.5,
    "dict in a dict": {"x": {"y": ONE}},
    "text": np.array(["a", "b"]),
    "objects": np.array([None, 1]),
    "complex": np.ones(3, np.complex64),
    "masked": np.ma.masked_greater(ONE, 0),
    "pickle": "some.pkl",
    "no such file": "absent.npy",
    "folder": ".",
}


@pytest.mark.parametrize("other", NO_ARRAYS.values(), ids=NO_ARRAYS)
def test_what_is_no_array_is_an_error(other):
    for pair in ((other, ONE), (ONE, other), (other, other)):
        with pytest.raises(parity.UsageError):
            parity.compare_tensors(*pair)


def test_constants_are_compared_where_the_caller_says_so():
    assert parity.compare_tensors(np.full(9, 7), np.full(9, 7), allow_constant=True)
    assert not parity.compare_tensors(np.full(9, 8), np.full(9, 7), allow_constant=True)
    assert not parity.compare_tensors(np.full(9, 1e-9), np.zeros(9), allow_constant=True)


def test_integers_and_truth_values_are_exact():
    expected = np.arange(100).reshape(10, 10)
    actual = expected.copy()
    assert parity.compare_tensors(actual, expected)
    actual[4, 2] += 1
    (result,) = parity.compare_tensors(actual, expected).results
    assert result.first_bad.index == (4, 2) and result.reasons == ("1 of 100 elements differ, by 1 at most",)
    assert parity.compare_tensors(expected.astype(np.int32), expected, check_dtype=False)
    assert not parity.compare_tensors(expected > 3, expected > 4)


@pytest.mark.parametrize("order", ["big-endian", "transposed", "strided"])
def test_how_an_array_lies_in_memory_does_not_matter(order):
    expected = values((40, 40))
    actual = {
        "big-endian": expected.astype(">f4"),
        "transposed": expected.T.copy().T,
        "strided": np.repeat(expected, 2, axis=1)[:, ::2],
    }[order]
    assert parity.compare_tensors(actual, expected)
    assert not parity.compare_tensors(actual.T, expected)


def test_bounds_are_the_callers_and_bound_something():
    expected = values()
    assert not parity.compare_tensors(noisy(expected, 1e-3), expected)
    assert parity.compare_tensors(noisy(expected, 1e-3), expected, bounds=parity.Bounds(1e-2, 1e-1, 0.5))
    for value in (0, -1e-3, 1.0, float("inf"), float("nan")):
        with pytest.raises(parity.UsageError, match="l2"):
            parity.Bounds(value, 1e-1, 0.5)


def test_a_floor_bounds_by_its_own_error():
    """What rounding does to this tensor is measured, not guessed: 1 % off fails where bfloat16's preset passes it."""
    expected = values()
    floor, device = expected.astype(BFLOAT16), (expected * (1 + 2**-8)).astype(np.float32).astype(BFLOAT16)
    wrong = (expected * 1.01).astype(BFLOAT16)
    options = dict(floor=floor, check_dtype=False)
    assert parity.compare_tensors(noisy(expected, 2e-3).astype(BFLOAT16), expected, **options)
    assert parity.compare_tensors(wrong, expected, check_dtype=False)
    assert not parity.compare_tensors(wrong, expected, **options)
    for bad in (expected, floor[:3], np.full_like(floor, np.nan), np.zeros_like(floor), {"x": floor}):
        with pytest.raises(parity.UsageError):
            parity.compare_tensors(device, expected, floor=bad, check_dtype=False)
    with pytest.raises(parity.UsageError, match="exclude"):
        parity.compare_tensors(device, expected, floor=floor, bounds=parity.Bounds(0.1, 0.1, 0.1))


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".pt"])
def test_files_are_read_as_the_importers_read_them(suffix, tmp_path):
    expected = values()
    good, bad = (write(tmp_path / f"{name}{suffix}", array) for name, array in (("a", expected), ("b", expected * 2)))
    true = expected if suffix == ".npy" else {"x": expected}
    parity.assert_parity(good, true)
    parity.assert_parity(true, str(good))
    with pytest.raises(AssertionError):
        parity.assert_parity(bad, good)


def write(path: Path, array: np.ndarray) -> Path:
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".npz":
        np.savez(path, x=array)
    elif path.suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file({"x": array}, path)
    else:
        import torch

        torch.save({"x": torch.from_numpy(array)}, path)
    return path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "bool"])
def test_torch_tensors_of_every_kind(dtype):
    import torch

    expected = (torch.from_numpy(values()) * 3).trunc().to(getattr(torch, dtype))
    actual = expected.clone().requires_grad_(dtype.startswith("float"))
    parity.assert_parity(actual, expected)
    parity.assert_parity({"x": actual}, {"x": expected})
    parity.assert_parity(torch.nn.Parameter(expected.clone(), requires_grad=False).T, expected.T)
    with pytest.raises(AssertionError):
        parity.assert_parity(actual.roll(1, 0), expected)
    row = expected[:1]
    parity.assert_parity(row.clone().expand(64, 128), row.expand(64, 128))
    with pytest.raises(AssertionError, match="the same memory"):
        parity.assert_parity(expected, expected.detach())


def test_bfloat16_of_torch_keeps_every_bit():
    import torch

    from parity.tensors.inputs import array_of

    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    finite = bits.view(torch.bfloat16).isfinite()
    array = array_of(bits.view(torch.bfloat16)[finite], "x")
    assert array.dtype == BFLOAT16 and (array.view(np.int16) == bits[finite].numpy()).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_jax_arrays(dtype):
    jax = pytest.importorskip("jax")
    expected = jax.numpy.asarray(values()).astype(dtype)
    actual = expected + 0
    parity.assert_parity(actual, np.asarray(expected).copy())
    with pytest.raises(AssertionError):
        parity.assert_parity(jax.numpy.roll(actual, 1, 0), expected)


def test_what_offers_dlpack_alone():
    class Exported:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    expected = values()
    parity.assert_parity(Exported(expected.copy()), expected)
    with pytest.raises(AssertionError):
        parity.assert_parity(Exported(expected + 1), expected)


def test_an_array_that_cannot_be_taken_is_an_error():
    class Broken:
        def __array__(self, *_, **__):
            raise RuntimeError("it lies on another machine")

    with pytest.raises(parity.UsageError, match="another machine"):
        parity.assert_parity(Broken(), ONE)


def test_a_name_draws_nothing_on_the_terminal():
    report = parity.compare_tensors({"\x1b[31mx": ONE + 1}, {"\x1b[31mx": ONE})
    assert "\x1b" not in str(report)


def test_every_bound_has_a_name_in_the_message():
    assert set(NAMES) == set(parity.Bounds.__dataclass_fields__)


def test_a_file_is_not_compared_with_itself(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4.0))
    (tmp_path / "y.npy").symlink_to(tmp_path / "x.npy")
    for other in ("x.npy", "y.npy"):
        with pytest.raises(UsageError, match="one file"):
            parity.compare_tensors(tmp_path / "x.npy", tmp_path / other)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((4000, 1), BFLOAT16), ((4000, 2), np.float32), ((500, 2, 2), np.float32)]
)
def test_short_rows_are_parts_of_longer_ones(shape, dtype):
    """A sum that nearly cancels is off by any factor: alone in its row it said that a right product is wrong."""
    weight = values((shape[-1], 64), np.float64, 3)
    true = values((*shape[:-1], 64), np.float64, 2) @ weight.T
    got = noisy(true, 3e-3 if dtype == BFLOAT16 else 2e-6).astype(dtype)
    assert parity.compare_tensors(got, true.astype(np.float32), check_dtype=False)
    wrong = got.copy()
    place = tuple(size // 2 for size in shape)
    wrong[place] += 300
    found = parity.compare_tensors(wrong, true.astype(np.float32), check_dtype=False)
    assert not found and found.results[0].worst.index == place and found.results[0].first_bad.index == place


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
def test_beside_what_stands_for_infinity_no_error_would_show(dtype):
    """An additive mask with one element of its own passed: the error is small beside the row's size."""
    least = float(ml_dtypes.finfo(dtype).min)
    mask = np.where(np.tril(np.ones((8, 32))) > 0, 0.0, least).astype(dtype)
    wrong = mask.copy()
    wrong[0, 0] = -1e9
    found = parity.compare_tensors(wrong, mask)
    assert not found and "stand for infinity (a mask)" in str(found)
    assert parity.compare_tensors(mask < 0, (mask < 0).copy()) and not parity.compare_tensors(wrong < 0, mask < 0)


def test_beside_one_number_that_is_all_that_shows_nothing_passes():
    """Scores behind a mask of -1e9 or -1e30, every one of them wrong: the number passed for them."""
    for least in (-1e9, -1e30):
        scores = np.where(np.tril(np.ones((8, 32))) > 0, values((8, 32)), least).astype(np.float32)
        wrong = np.where(scores == scores.min(), scores, -scores)
        found = parity.compare_tensors(wrong, scores)
        assert not found and f"nothing of expected shows but {least:g}" in str(found)
        kept = scores > scores.min()
        assert parity.compare_tensors(noisy(scores[kept], 1e-7), scores[kept])


def test_a_one_hot_row_is_more_than_its_one():
    hot = np.eye(16, 32, dtype=np.float32)
    assert parity.compare_tensors(hot.copy(), hot) and not parity.compare_tensors(np.roll(hot, 1), hot)


def test_what_hides_beside_a_huge_channel_is_told():
    """Residual streams have such channels: all others may be wrong, and bfloat16's bounds see nothing of it."""
    huge = values((64, 128))
    huge[:, 5] = 2e4 * (1 + values((64,), seed=7) / 10)
    wrong = -huge
    wrong[:, 5] = huge[:, 5]
    wrong, huge = wrong.astype(BFLOAT16), huge.astype(BFLOAT16)
    found = parity.compare_tensors({"x": wrong}, {"x": huge})
    assert found and found.results[0].hidden > 0.9 and any(said.startswith("x: 99% of its") for said in found.blind)
    assert not parity.compare_tensors(np.delete(wrong, 5, 1), np.delete(huge, 5, 1))


def test_large_numbers_of_float64_are_numbers():
    large = values(dtype=np.float64) * 1e60
    assert parity.compare_tensors(noisy(large, 1e-15), large)
