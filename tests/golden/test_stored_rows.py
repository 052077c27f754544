"""What is stored of a tensor where less than all is kept, by hand, and what a dump says of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from parity.errors import UsageError
from parity.golden.case import KeptStages
from parity.golden.keeping import Form, Keeping
from parity.golden.manifest import TensorRow, key
from parity.golden.store import Dump
from parity.golden.writer import DumpWriter
from parity.sketch import Sketched, sketch
from parity.stages import declared

NAMES = declared(1, 1)
EMBED, LOGITS, CACHE, TOKENS = "target.embed", "target.logits", "kv.target.0.k", "target.tokens"
WIDE = np.arange(40, dtype=np.float32).reshape(2, 20)


def row(stage: str, shape, start: int = 0, prompt: int = 0, round_: int = 0, **more) -> TensorRow:
    fields = dict(axes=NAMES[stage].stage.axes, dtype="float32", variant="float32", shard="s", sha256="") | more
    return TensorRow(key=key(prompt, round_, stage), shape=shape, start=start, **fields)


def keeping(positions: str = "", **numbers: int) -> Keeping:
    """Sketches of so many numbers, so many best logits."""
    stages = {"sketch": "*", "top": "*.logits"}
    kept = [KeptStages(stages=stages[form], form=form, numbers=count) for form, count in numbers.items()]
    return Keeping(kept, positions, NAMES)


def kept(value, keep: Keeping | None, stage: str = EMBED, truth=None, start: int = 0, **more):
    writer = DumpWriter.__new__(DumpWriter)
    writer.keep, writer.lengths = keep, (2,)
    described = row(stage, (value.shape[0] - start, *value.shape[1:]), start, **more)
    return writer._kept(described, value, truth)


def test_nothing_said_keeps_the_rows_from_the_first_that_changed():
    assert kept(WIDE, None, start=1).tolist() == WIDE[1:].tolist()
    with pytest.raises(UsageError, match=r"^target\.embed came as a sketch, and nobody asked for one$"):
        kept(Sketched(WIDE, (2, 90), "float32"), None)


@pytest.mark.parametrize("more", [{"rank": 1}, {"sharding": "sum"}])
def test_ranks_are_kept_whole(more):
    with pytest.raises(UsageError, match=r"^target\.embed is of ranks: sketches, best logits and positions"):
        kept(WIDE, keeping(sketch=8), **more)
    assert kept(WIDE, None, **more) is not None


def test_rows_are_kept_as_sketches_floors_as_sums_and_narrow_ones_whole():
    keep = keeping(sketch=8)
    assert kept(WIDE, keep).tolist() == sketch(WIDE, 8, 0).tolist()
    assert kept(WIDE, keep, truth=WIDE + 1)[:, 2].tolist() == [-20, -20]  # the plain sum of the error
    assert kept(WIDE[:, :10], keep).tolist() == WIDE[:, :10].tolist()
    assert kept(WIDE, keeping(positions="0"), start=1).tolist() == WIDE[1:].tolist()


@pytest.mark.parametrize(
    ("rows", "numbers", "stage", "wrong"),
    [
        (2, {"sketch": 18}, EMBED, False),
        (2, {"sketch": 17}, EMBED, True),
        (2, {"sketch": 19}, EMBED, True),
        (3, {"sketch": 18}, EMBED, True),
        (2, {"top": 4}, LOGITS, True),
        (2, {"sketch": 18, "top": 4}, LOGITS, True),
        (2, {"sketch": 18}, LOGITS, False),
    ],
)
def test_a_device_that_sketches_does_so_as_was_asked(rows, numbers, stage, wrong):
    """18 sums, a norm and a plain sum are 20 numbers of rows of 90."""
    came = Sketched(WIDE, (rows, 90), "bfloat16")
    if not wrong:
        assert kept(came, keeping(**numbers), stage, start=0).tolist() == WIDE.tolist()
        return
    with pytest.raises(UsageError, match=rf"^{stage} came as a sketch of another size than was asked for$"):
        kept(came, keeping(**numbers), stage)


def opened(keep: Keeping, kind: str = "run") -> Dump:
    made = Dump.__new__(Dump)
    case = SimpleNamespace(kept=keep.kept, positions=keep.positions, prompts=[SimpleNamespace(ids=(1,) * 5)])
    made.keeping, made.manifest, made.folder = keep, SimpleNamespace(case=case, kind=kind), Path("/d")
    return made


@pytest.mark.parametrize(
    ("keep", "stage", "shape", "less"),
    [
        (keeping(sketch=8), EMBED, (5, 11), "a sketch of 8 numbers a row"),
        (keeping(sketch=8), EMBED, (5, 10), ""),
        (keeping(sketch=8, top=4), LOGITS, (5, 90), "a sketch of 8 numbers a row"),
        (keeping(top=4), LOGITS, (5, 10), "the 4 best a row"),
        (keeping(top=4), LOGITS, (5, 9), ""),
        (keeping(positions="0"), EMBED, (5, 90), "some rows"),
        (keeping(positions="0-"), EMBED, (5, 90), ""),
        (keeping(positions="0", sketch=8), TOKENS, (5,), ""),
    ],
)
def test_what_a_dump_keeps_less_of_is_told_in_words(keep, stage, shape, less):
    made = opened(keep)
    made.rows = {("float32", 0, 0, stage): row(stage, shape)}
    assert made._less(("float32", 0, 0, stage)) == less


def test_what_stands_in_a_shard_is_what_its_manifest_says():
    stored = {"float32": row(LOGITS, (5, 90)), "bfloat16": row(LOGITS, (5, 90), variant="bfloat16", dtype="bfloat16")}
    whole = opened(Keeping((), "", NAMES))
    assert whole._stored_as(stored["bfloat16"]) == ((5, 90), "bfloat16")
    keep = keeping(positions="0", sketch=8, top=4)
    assert keep.form(LOGITS, (5, 90)) == Form(8, 0, 4)
    assert opened(keep)._stored_as(stored["bfloat16"]) == ((3, 19), "float32")
    assert opened(keep, "golden")._stored_as(stored["float32"]) == ((3, 19), "float32")
    assert opened(keep, "golden")._stored_as(stored["bfloat16"]) == ((3, 9), "float32")
    assert opened(keep)._stored_as(row(EMBED, (5, 10), dtype="bfloat16")) == ((3, 10), "bfloat16")


def test_rows_of_a_dump_are_numbered_in_the_whole_tensor():
    assert opened(Keeping((), "", NAMES))._index(row(CACHE, (2, 1, 2), 3)).tolist() == [3, 4]
    assert opened(keeping(positions="1"))._index(row(EMBED, (5, 90))).tolist() == [1, 3, 4]
