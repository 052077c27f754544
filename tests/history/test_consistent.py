"""A file of history that says what no night can have written is refused, in one sentence; each was once believed."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parity.history import append, schema, verdicts
from tests.history.synthetic import frame, night, results
from tests.history.test_verdicts import flat


@pytest.fixture(scope="module")
def made():
    return flat(2, 1)


def first(rows, metric="l2"):
    return next(row for row in rows if row["metric"] == metric)


def changed(metric="l2", **new):
    return lambda rows: first(rows, metric).update(new)


def every(**new):
    return lambda rows: [row.update(new) for row in rows]


def twice(rows):
    rows.insert(0, dict(first(rows), value=9.0))


def later(**more):
    return lambda rows: [row.update(started=row["started"] + timedelta(**more)) for row in rows]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (changed(verdict="fail"), "l2 of target.layers.0.attn_out (local) fails, and its cell passes"),
        (changed(verdict="FAIL"), "l2 of target.layers.0.attn_out (local) has a verdict that no figure has"),
        (changed("passed", value=0.0), "passed of cell is not what its cell's verdict says"),
        (changed(value=None), "passes without a number"),
        (changed(value=float("nan")), "passes without a number"),
        (changed(value=-0.9), "is a distance below 0"),
        (changed(value=float("-inf")), "is a distance below 0"),
        (changed(better="higher"), "is said to be better the other way round"),
        (changed("relative", better="lower"), "is said to be better the other way round"),
        (twice, "l2 of target.layers.0.attn_out (local) is there twice"),
        (every(k=7), "is the name of another case, device, family, K, TP or policy"),
        (every(policy="float32"), "is the name of another case"),
        (changed(golden="f" * 64), "say different things of the cell"),
        (every(cell_verdict="PASS"), "has the verdict 'PASS', which no cell has"),
        (every(night="another"), "its rows are of night another"),
        (changed(night="another"), "its rows are of several nights"),
        (later(days=-9), "its rows began on 2026-09-2"),
    ],
)  # fmt: skip
def test_what_no_night_wrote_is_refused(made, tmp_path, parity, edit, said):
    file = append(str(tmp_path / "h"), night(made, 1), results(made, 1))
    rows = pq.read_table(file, partitioning=None).to_pylist()
    assert parity("history", tmp_path / "h").code == 0
    edit(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema.schema()), file)
    found = parity("history", tmp_path / "h", "--changes")
    assert found.code == 2 and said in found.err and file in found.err and found.err.count("\n") == 1
    Path(file).unlink()


def test_a_night_that_is_still_to_come_does_not_hide_those_behind_it(made, tmp_path, parity):
    ahead = (datetime.now().astimezone() + timedelta(days=400)).isoformat()
    append(str(tmp_path / "h"), night(made, 1).model_copy(update={"started": ahead}), results(made, 1))
    found = parity("history", tmp_path / "h", "--changes")
    assert found.code == 2 and "which is still to come" in found.err


@pytest.mark.parametrize("option", [("--stage", "*"), ("--metric", "l2"), ("--mode", "local"), ("--nights",)])
def test_changes_refuse_an_option_that_would_be_ignored(made, tmp_path, parity, option):
    append(str(tmp_path / "h"), night(made, 1), results(made, 1))
    found = parity("history", tmp_path / "h", "--changes", *option)
    assert found.code == 2 and f"it takes no {option[0]}" in found.err


def told(table):
    names = [str(name) for name in table["night"].cat.categories]
    return {change.kind: change.sentence for change in verdicts(table, names[-1])}


def test_a_figure_that_is_gone_from_a_stage_is_told():
    table = frame(flat(2, 1))
    tonight = table["night"] == table["night"].cat.categories[-1]
    lost = tonight & (table["metric"] == "l2") & (table["stage"] == "target.logits") & (table["mode"] == "local")
    assert told(table) == {}
    for without in (table[~lost], table.assign(value=np.where(lost, np.nan, table["value"]))):
        assert "l2 of target.logits (local) in x noise is gone; " in told(without)["gone"]
    other = table.assign(unit=np.where(lost, "share", table["unit"].astype(str)))
    assert "l2 of target.logits (local) in x noise is gone; " in told(other)["gone"]


@pytest.mark.parametrize(("verdict", "kind"), [("fail", "regression"), ("inconclusive", "broken")])
def test_a_cell_that_does_not_pass_when_it_is_measured_again_is_told(verdict, kind):
    import pandas as pd

    table = frame(flat(2, 1))
    again = table[table["night"] == table["night"].cat.categories[-1]].assign(repeat=np.int16(1))
    whole = pd.concat([table, again.assign(cell_verdict=verdict)], ignore_index=True)
    assert told(table) == told(pd.concat([table, again], ignore_index=True)) == {}
    assert list(told(whole)) == [kind]
    if verdict == "fail":
        assert "where it is measured again" in told(whole)[kind]
