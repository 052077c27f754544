"""Every operation of the pipeline's programs passes where it is right; each planted miscompilation fails by name."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from parity import device
from parity.builders import inventory
from parity.bundled import published_pair
from parity.errors import DeviceEnded, NotOffered
from parity.ops.cutting import cut_to
from parity.ops.harness import OperationReport, try_operation
from parity.ops.operands import index_bounds, operands
from parity.seam import Cut, Operand, Operation

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
LIMIT = 1 << 26
RUN = dict(k=4, prompt=40, tokens=10, emitted=2, precision="bfloat16", tp=1, watched=False)


@pytest.fixture(scope="module")
def operations() -> list[Operation]:
    """Of a short run, in both formulations of the experts."""
    runs = [inventory(*published_pair("tiny"), **RUN, moe=moe).operations() for moe in ("masked", "gathered")]
    return list(dict.fromkeys(operation for run in runs for operation in run))


def test_every_operation_passes_on_the_numpy_engine(operations):
    wrong = [one for one in (try_operation(each, device.operate, 0, LIMIT) for each in operations) if one.why]
    assert not wrong and len(operations) > 300
    names = Counter(each.name for each in operations)
    assert {"where", "setitem", "take", "take_along_axis", "argmax", "sum", "exp", "cumsum", "any"} <= set(names)


@pytest.mark.parametrize("engine", ["xla", "nkipy"])
def test_one_of_each_kind_passes_on_compiled_engines(engine, operations):
    if why := device.absent(engine):
        pytest.skip(why)
    kinds = {(each.name, *(one.dtype for one in each.operands)): each for each in reversed(operations)}
    operate = lambda *given: device.operate(*given, engine=engine)  # noqa: E731
    results = [try_operation(each, operate, 0, LIMIT) for each in kinds.values()]
    assert not [one for one in results if one.verdict not in ("pass", "warn")]
    # NKIPy's cumsum of whole numbers is float32.
    assert {one.operation.name for one in results if one.verdict == "warn"} <= {"cumsum"}


def wide(value):
    return value.astype(np.float32) if value.dtype == BFLOAT16 else value


def arithmetic_where(operation, mask, *values):
    """The classic: a mask as a factor; what is not chosen still takes part."""
    chosen = iter(values)
    x, y = (wide(next(chosen)) if isinstance(one, Operand) else one for one in operation.arguments[1:])
    m = mask.astype(np.float32)
    return x * m + y * (1 - m)


def where_of_the_first_row(operation, mask, *values):
    """One row's mask for all of them."""
    return operation.apply(np.broadcast_to(mask[..., :1, :], mask.shape), *values)


def where_without_last_column(operation, mask, *values):
    right = np.array(operation.apply(mask, *values))
    mask = np.broadcast_to(mask, right.shape).copy()
    mask[..., -1] = True
    return np.array(operation.apply(mask, *values))


def setitem_without_last_row(operation, array, index, value):
    kept = array.copy()
    operation.apply(array, index, value)
    array[:, index[-1]] = kept[:, index[-1]]
    return array


def setitem_that_adds(operation, array, index, value):
    kept = array.copy()
    operation.apply(array, index, value)
    return (wide(array) + wide(kept)).astype(array.dtype)


def setitem_in_order(operation, array, index, value):
    return operation.apply(array, np.sort(index), value)


def setitem_on_a_copy(operation, array, index, value):
    operation.apply(array.copy(), index, value)
    return array


def sum_in_bfloat16(operation, x):
    total, axis = np.zeros((), BFLOAT16), dict(operation.keywords)["axis"]
    for part in np.moveaxis(x.astype(BFLOAT16), axis, 0):
        total = (total.astype(np.float32) + part.astype(np.float32)).astype(BFLOAT16)
    total = total.astype(np.float32)
    return np.expand_dims(total, axis) if dict(operation.keywords).get("keepdims") else total


def without_last(operation, x):
    axis = dict(operation.keywords)["axis"]
    return operation.apply(np.take(x, range(x.shape[axis] - 1), axis=axis))


def last_of_maxima(operation, x):
    axis = dict(operation.keywords)["axis"]
    return x.shape[axis] - 1 - np.argmax(np.flip(wide(x), axis), axis=axis)


def of_sizes(operation, x):
    return operation.apply(np.abs(wide(x))).astype(x.dtype)


def rows_of_ids_below(operation, table, ids):
    return operation.apply(table, np.maximum(ids - 1, 0))


def without_sign_of_zero(operation, *values):
    return operation.apply(*values) + operation.results[0].shape[-1] * np.float32(0)


def truncated(operation, x):
    return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(BFLOAT16)


def through_bfloat16(operation, *values):
    with np.errstate(all="ignore"):
        return operation.apply(*(wide(one) for one in values)).astype(BFLOAT16).astype(np.float32)


def backwards(operation, *values):
    return operation.apply(*values[::-1]) if len(values) == 2 else -operation.apply(*values)


def strict(operation, left, *right):
    return np.less(left, *right, *(one for one in operation.arguments if isinstance(one, int)))


PLANTED = [
    *(("where", plant) for plant in (arithmetic_where, where_of_the_first_row, where_without_last_column)),
    *(("setitem", one) for one in (setitem_without_last_row, setitem_that_adds, setitem_in_order, setitem_on_a_copy)),
    *(("sum", sum_in_bfloat16), ("sum", without_last), ("mean", without_last), ("max", without_last)),
    ("max", of_sizes),
    *(("any", without_last), ("argmax", last_of_maxima), ("argmax", of_sizes), ("cumsum", backwards)),
    *(("take", rows_of_ids_below), ("take_along_axis", rows_of_ids_below), ("concatenate", backwards)),
    *(("getitem", without_sign_of_zero), ("astype", truncated), ("subtract", backwards), ("greater_equal", strict)),
    *((name, through_bfloat16) for name in ("exp", "divide", "sqrt", "multiply", "square", "maximum", "negative")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "plant"), PLANTED)
def test_a_planted_miscompilation_fails_by_name_and_nothing_else_does(name, plant, operations):
    def applies(operation):
        return operation.name == name and all(one.dtype in ("float32", "bfloat16") for one in operation.results) | (
            name in ("any", "argmax", "cumsum", "greater_equal")
        )

    def operate(operation, *arrays):
        if not applies(operation) or (plant is truncated and operation.results[0].dtype != "bfloat16"):
            return device.operate(operation, *arrays)
        with np.errstate(all="ignore"):
            return np.asarray(plant(operation, *arrays)).astype(arrays_dtype(operation))

    kinds = {(each.name, *(one.dtype for one in each.operands)): each for each in operations if each.name == name}
    others = {each.name: each for each in operations if each.name != name}
    results = [try_operation(each, operate, 0, LIMIT) for each in (*kinds.values(), *others.values())]
    failed = [one for one in results if one.verdict == "fail"]
    assert {one.operation.name for one in failed} == {name}, [one.why for one in results]
    report = OperationReport("numpy", 0, tuple(results))
    assert report.verdict == "fail" and report.to_dict()["verdict"] == "fail"


def arrays_dtype(operation):
    name = operation.results[0].dtype
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def operation(name, *arguments, result, **keywords):
    return Operation(name, arguments, tuple(keywords.items()), (result,))


ROWS, MASK, SLOTS = Operand((6, 40), "bfloat16"), Operand((6, 40), "bool"), Operand((4,), "int32")
MASKED = operation("setitem", ROWS, MASK, -1e30, result=ROWS)
WRITTEN = operation("setitem", ROWS, (SLOTS, Cut(0, 7, None)), Operand((4, 7), "bfloat16"), result=ROWS)
TOTAL = operation("sum", Operand((5, 90), "float32"), axis=-1, result=Operand((5,), "float32"))


def test_a_masked_assignment_is_judged_bit_for_bit():
    assert str(MASKED) == "setitem(bfloat16[6,40], bool[6,40], -1e+30)"
    assert str(WRITTEN) == "setitem(bfloat16[6,40], [int32[4], 0:7], bfloat16[4,7])" and index_bounds(WRITTEN) == {1: 6}
    for one in (MASKED, WRITTEN):
        assert try_operation(one, lambda each, *arrays: each.apply(*arrays), 0, LIMIT).verdict == "pass"

    def ignored(each, array, mask):
        return array

    def in_every_row(each, array, mask):
        return each.apply(array, np.broadcast_to(mask.any(axis=0), mask.shape))

    def as_a_factor(each, array, mask):
        array[:] = (array.astype(np.float32) * (1 - mask) - 1e30 * mask).astype(BFLOAT16)
        return array

    for plant in (ignored, in_every_row, as_a_factor):
        found = try_operation(MASKED, plant, 0, LIMIT)
        assert found.verdict == "fail" and "elements are wrong" in found.why, plant


def test_places_are_written_once_but_for_the_last_which_any_may_win():
    arrays = dict(operands(WRITTEN, 0))
    assert len(set(arrays["ordinary"][1].tolist())) == 4 and (arrays["edges"][1] == 5).sum() >= 2

    def first_wins(each, array, slots, value):
        return each.apply(array, slots[::-1], value[::-1])

    def last_place_lost(each, array, slots, value):
        kept = array[5].copy()
        each.apply(array, slots, value)
        array[5] = kept
        return array

    assert try_operation(WRITTEN, first_wins, 0, LIMIT).verdict == "pass"
    assert [try_operation(WRITTEN, last_place_lost, seed, LIMIT).verdict for seed in range(8)].count("fail") >= 3


@pytest.mark.parametrize(
    ("operate", "verdict", "word"),
    [
        (lambda each, x: x.sum(axis=-1)[:4], "fail", r"returned float32\[4\] where the program says float32\[5\]"),
        (lambda each, x: x.sum(axis=-1).astype(BFLOAT16), "fail", "returned bfloat16"),
        (lambda each, x: [x.sum(axis=-1)] * 2, "fail", "returned 2 results, not 1"),
        (lambda each, x: x.sum(axis=-1) * np.nan, "fail", "elements are wrong"),
        (lambda each, x: 1 / 0, "fail", "ZeroDivisionError"),
        (lambda each, x: (_ for _ in ()).throw(NotOffered("has no sum")), "inconclusive", "has no sum"),
    ],
)
def test_what_gives_no_such_result(operate, verdict, word):
    found = try_operation(TOTAL, operate, 0, LIMIT)
    assert found.verdict == verdict and re.search(word, found.why), found


def test_a_device_that_ends_ends_the_command():
    def ends(each, *arrays):
        raise DeviceEnded("numpy", "operate", "ended its process")

    with pytest.raises(DeviceEnded):
        try_operation(TOTAL, ends, 0, LIMIT)


def test_the_right_values_in_another_dtype_are_a_warning():
    count = operation("cumsum", SLOTS, axis=0, result=SLOTS)
    found = try_operation(count, lambda each, x: each.apply(x).astype(np.float32), 0, LIMIT)
    assert (found.verdict, found.wrong) == ("warn", 0) and "returned float32[4]" in found.why


def test_a_large_operation_is_cut_where_it_can_be_and_says_so():
    wide = Operand((3, 1000, 8), "bfloat16")
    cast = operation("astype", wide, "float32", result=replace(wide, dtype="float32"))
    table = operation("take", Operand((9000, 8), "float32"), SLOTS, axis=0, result=Operand((4, 8), "float32"))
    for large, small in ((cast, "bfloat16[3,166,8]"), (table, "float32[500,8]")):
        found = try_operation(large, device.operate, 0, 4000)
        assert found.verdict == "pass" and small in found.cut and cut_to(large, LIMIT) is large
    turned = operation("transpose", wide, 2, 0, 1, result=Operand((8, 3, 1000), "bfloat16"))
    found = try_operation(turned, device.operate, 0, 4000)
    assert found.verdict == "inconclusive" and "--limit 4000" in found.why


def test_nothing_to_try_is_inconclusive():
    assert OperationReport("numpy", 0, ()).verdict == "inconclusive"
