"""What a manifest may say of who made a dump and of its tokens, sizes and numbers: each at its first and last value."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from parity import limits
from parity.golden import fields
from parity.golden.checkpoints import Constant
from parity.golden.producer import Producer, ProducerPart

TOKEN, LAYERS, DRAFTS = limits.TOKEN, limits.LAYERS, limits.DRAFTS


@pytest.mark.parametrize(
    ("kind", "taken", "refused"),
    [
        (fields.Tokens, [[], [0], [TOKEN - 1], [0, 5, 0]], [[-1], [TOKEN], [0, -1], [0.5]]),
        (fields.Vocabulary, [None, [], [0, TOKEN - 1]], [[-1], [TOKEN]]),
        (fields.Scales, [[], [1e-30, 2.0], [1.0] * LAYERS], [[0.0], [-1.0], [float("inf")], [float("nan")]]),
        (fields.RoundCounts, [[0, DRAFTS + 1]], [[-1], [DRAFTS + 2]]),
        (fields.Schedule, [[0, DRAFTS]], [[-1], [DRAFTS + 1]]),
        (fields.LayerCount, [1, LAYERS], [0, LAYERS + 1]),
        (fields.Size, [0, 2**48 - 1], [-1, 2**48]),
        (fields.Shape, [[0], [1] * limits.AXES], [[], [1] * (limits.AXES + 1), [-1]]),
        (fields.Axes, [["S"], ["S"] * limits.AXES], [[], ["S"] * (limits.AXES + 1), [""], ["a b"], ["x" * 9]]),
        (fields.Line, ["", "a b", "x" * 4096], ["x" * 4097, "a\nb", "\x1b[0m", "\u202e"]),
        (fields.TensorKey, ["p000/r0000/a", "p000000/r0000000/a.b"], ["p00/r0000/a", "p000/r000/a", "p000/r0000/a/b"]),
        (Constant, [True, 1, -2.5, "a", [1, True, "a"], [0] * LAYERS],
         [None, float("inf"), float("nan"), [float("inf")], {}, [0] * (LAYERS + 1), "a\nb"]),
    ],
)  # fmt: skip
def test_each_value_at_its_edges(kind, taken, refused):
    known = TypeAdapter(kind)
    for value in taken:
        known.validate_python(value)
    for value in refused:
        with pytest.raises(ValidationError):
            known.validate_python(value)


PART = ProducerPart(stages=("b", "c"), modules=("two",))


def produced(*parts: ProducerPart, sources=(("one", "1"), ("two", "2"))) -> Producer:
    return Producer(
        name="own", versions={}, modules=("one", "two"), source_digest="", threads=1, platform="x",
        sources=dict(sources), parts=parts,
    )  # fmt: skip


def test_a_stage_of_a_part_is_of_the_parts_modules_alone():
    whole = produced(PART, ProducerPart(stages=("d",), modules=("two", "one")))
    assert whole.of("a") is whole
    for stage, modules, sources in (
        ("b", ("two",), {"two": "2"}), ("c", ("two",), {"two": "2"}), ("d", ("two", "one"), {"one": "1", "two": "2"}),
    ):  # fmt: skip
        own = whole.of(stage)
        assert (own.modules, own.sources, own.parts, own.name) == (modules, sources, (), "own")
    assert produced().of("b") == produced()


@pytest.mark.parametrize("modules", [(), ("three",), ("two", "three")])
def test_the_modules_of_a_part_are_some_of_the_producers(modules):
    with pytest.raises(ValidationError, match="the modules of a part are some of the producer's"):
        produced(PART, ProducerPart(stages=("d",), modules=modules))


def test_nothing_is_said_beside_the_fields_or_changed_behind_them():
    with pytest.raises(ValidationError, match="extra"):
        ProducerPart(stages=(), modules=(), more=1)
    with pytest.raises(ValidationError, match="frozen"):
        PART.stages = ()
