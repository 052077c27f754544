"""The store: whole files, one a night, appended by anyone, read back by version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parity.errors import UsageError
from parity.history import append, load, schema
from parity.history.store import HistoryStore
from tests.history.synthetic import night, results, world

ROOT = Path(__file__).parents[2]
COLUMNS = [
    "schema_version",
    "night",
    "started",
    "date",
    "commit",
    "dirty",
    "machine",
    "engine",
    "cell",
    "case",
    "device",
    "device_spec",
    "family",
    "k",
    "tp",
    "policy",
    "precision",
    "stage",
    "mode",
    "metric",
    "value",
    "unit",
    "better",
    "verdict",
    "bound",
    "low",
    "high",
    "cell_verdict",
]


@pytest.fixture(scope="module")
def made():
    return world(1, 4, 2)


def record(url, made, numbers=range(3)) -> list[str]:
    return [append(str(url), night(made, number), results(made, number)) for number in numbers]


def rewrite(path: str, change) -> None:
    pq.write_table(change(pq.read_table(path, partitioning=None)), path)


def test_a_night_is_one_file_in_the_partition_of_its_date(made, tmp_path):
    (file,) = record(tmp_path / "h", made, [0])
    assert Path(file).parent == tmp_path / "h/date=2026-10-01"
    assert Path(file).name.startswith(f"{made.name(0)}-") and Path(file).suffix == ".parquet"
    assert [one.name for one in Path(file).parent.iterdir()] == [Path(file).name], "nothing half-written is left"


@pytest.mark.parametrize("place", ["folder", "file://", "memory://"])
def test_what_is_recorded_is_read_back(made, tmp_path, place):
    url = {"folder": str(tmp_path / "h"), "file://": f"file://{tmp_path}/h", "memory://": f"memory://{tmp_path.name}"}[
        place
    ]
    record(url, made)
    table = load(url)
    assert set(COLUMNS) <= set(table.columns)
    assert list(table["night"].unique()) == [made.name(number) for number in range(3)]
    figures = table[~table["metric"].isin(["passed", "seconds"])]
    assert np.array_equal(figures["value"].to_numpy().reshape(3, -1), made.values[:3])
    first = table.iloc[0]
    assert (first["case"], first["k"], first["tp"], str(first["date"])) == ("case0", 4, 1, "2026-10-01")
    assert str(table["started"].dt.tz) == "UTC" and table["bound"].isna().any()


def test_filters_choose_rows(made, tmp_path):
    record(tmp_path / "h", made)
    table = load(str(tmp_path / "h"), cell="case1*", stage="fc_out", metric="l2", mode="local", last=2)
    assert len(table) == 2 and set(table["stage"]) == {"drafter.fc_out"}
    assert set(load(str(tmp_path / "h"), since="2026-10-02")["date"]) == {"2026-10-02", "2026-10-03"}
    assert set(load(str(tmp_path / "h"), night=made.name(1))["night"]) == {made.name(1)}


def test_a_night_recorded_twice_counts_once_with_the_latest_of_each_cell(made, tmp_path):
    url = str(tmp_path / "h")
    append(url, night(made, 0), results(made, 0))
    again = results(made, 1)[:1]  # the first cell of a resumed night, with other figures
    append(url, night(made, 0), again)
    table = load(url)
    assert not table.duplicated(["night", "cell", "stage", "mode", "metric"]).any() and table["night"].nunique() == 1
    figures = table[~table["metric"].isin(["passed", "seconds"])]
    half = made.values.shape[1] // 2
    mine = dict(iter(figures.groupby("cell", observed=True)["value"]))
    names = [key[0] for key in made.keys]
    assert sorted(mine["case0.numpy.peagle.k4.tp1.bfloat16"]) == sorted(
        made.values[1][[name.startswith("case0") for name in names]]
    )
    assert len(mine["case1.numpy.peagle.k4.tp1.bfloat16"]) == half
    assert sorted(mine["case1.numpy.peagle.k4.tp1.bfloat16"]) == sorted(
        made.values[0][[name.startswith("case1") for name in names]]
    )


def test_files_are_never_rewritten(made, tmp_path):
    (first,) = record(tmp_path / "h", made, [0])
    before = (Path(first).stat().st_mtime_ns, Path(first).read_bytes())
    record(tmp_path / "h", made, [0, 1])
    assert (Path(first).stat().st_mtime_ns, Path(first).read_bytes()) == before


WRITER = """
import sys
from parity.history import append
from tests.history.synthetic import night, results, world
made = world(1, 4, 2)
for number in range(4):
    append(sys.argv[1], night(made, number), results(made, number)[int(sys.argv[2]) :][:1])
"""


def test_two_writers_at_once_lose_nothing(made, tmp_path):
    commands = [[sys.executable, "-c", WRITER, str(tmp_path / "h"), cell] for cell in "01"]
    writers = [subprocess.Popen(one, cwd=ROOT, stderr=subprocess.PIPE) for one in commands]
    assert [one.communicate()[1] for one in writers] == [b"", b""]
    table = load(str(tmp_path / "h"))
    assert len(table.drop_duplicates(["night", "cell"])) == 8
    assert len(table) == 4 * (made.values.shape[1] + 4)


def test_a_half_written_file_is_not_read(made, tmp_path):
    (file,) = record(tmp_path / "h", made, [0])
    Path(file).with_name(f".{Path(file).name}.partial").write_bytes(b"PAR1 half")
    assert len(load(str(tmp_path / "h"))["night"].unique()) == 1


@pytest.mark.parametrize(
    "damage",
    [lambda whole: whole[:-100], lambda whole: b"", lambda whole: whole[:50] + bytes([whole[50] ^ 1]) + whole[51:]],
)
def test_a_damaged_file_is_named_and_nothing_is_lost(made, tmp_path, damage, parity):
    _, file, _ = record(tmp_path / "h", made)
    Path(file).write_bytes(damage(Path(file).read_bytes()))
    found = parity("history", tmp_path / "h")
    assert found.code == 2 and file in found.err and "damaged" in found.err and found.err.count("\n") == 1
    Path(file).rename(tmp_path / "aside")
    assert load(str(tmp_path / "h"))["night"].nunique() == 2, "the other nights are as they were"


def test_a_night_of_another_name_is_refused_where_it_was_left_out_without_a_word(made, tmp_path, parity):
    first, _ = record(tmp_path / "h", made, range(2))
    Path(first).rename(f"{first.removesuffix('.parquet')} (1).parquet")
    found = parity("history", tmp_path / "h")
    assert found.code == 2 and "(1).parquet has a name that no night has" in found.err


def versioned(number: int):
    return lambda table: table.replace_schema_metadata({schema.KEY: str(number).encode()})


def test_a_newer_file_is_refused(made, tmp_path, parity):
    (file,) = record(tmp_path / "h", made, [0])
    rewrite(file, versioned(schema.VERSION + 1))
    found = parity("history", tmp_path / "h")
    assert found.code == 2 and file in found.err and "update parity" in found.err


def test_an_older_file_is_migrated_on_reading_and_left_alone(made, tmp_path, monkeypatch):
    first, _ = record(tmp_path / "h", made, [0, 1])
    rewrite(
        first,
        lambda table: versioned(0)(
            table.drop_columns(["low", "high", "repeat", "golden", "left_out"]).rename_columns({"unit": "measured_in"})
        ),
    )
    before = Path(first).read_bytes()
    with pytest.raises(UsageError, match="version 0, from which no migration"):
        load(str(tmp_path / "h"))

    def from_0(table: pa.Table) -> pa.Table:
        table = table.rename_columns({"measured_in": "unit"})
        for name in ("low", "high"):
            table = table.append_column(name, pa.nulls(len(table), pa.float64()))
        return table

    monkeypatch.setitem(schema.MIGRATIONS, 0, from_0)
    table = load(str(tmp_path / "h"))
    assert table["night"].nunique() == 2 and table["low"].notna().any() and set(table["unit"]) >= {"x noise", "ratio"}
    assert set(table["golden"]) == set(table["left_out"]) == {""}
    assert Path(first).read_bytes() == before


def test_a_foreign_parquet_file_is_refused(made, tmp_path):
    (file,) = record(tmp_path / "h", made, [0])
    pq.write_table(pa.table({"a": [1]}), file)
    with pytest.raises(UsageError, match="names no schema version"):
        load(str(tmp_path / "h"))


@pytest.mark.parametrize("url", ["nowhere", "nonsense://bucket/h"])
def test_a_place_without_history_is_one_sentence(url, parity):
    found = parity("history", url)
    assert found.code == 2 and url in found.err and found.err.count("\n") == 1


def test_a_place_that_cannot_be_written_is_one_sentence(made, tmp_path):
    (tmp_path / "h").write_text("a file")
    with pytest.raises(UsageError, match="cannot be written"):
        record(tmp_path / "h", made, [0])


def test_no_results_are_no_record(made, tmp_path):
    with pytest.raises(UsageError, match="no results"):
        append(str(tmp_path / "h"), night(made, 0), [])
    assert HistoryStore(str(tmp_path / "h")).history_files() == []
