"""A cell of a night that is timed, and its figures in history."""

from __future__ import annotations

from time import process_time

import pytest

from parity.errors import UsageError
from parity.nightly.cell import judge_cell
from parity.nightly.expand import cells
from parity.nightly.matrix import read_matrix
from parity.nightly.records import Cell, CellAxes, CellResult
from tests.sample import first

MATRIX = """
k = [2]
[cases.one]
target = "target"
drafter = "drafter"
prompts = "prompts/chat.jsonl"
max_new_tokens = 8
[devices]
numpy = "numpy"
xla = "xla"
[[include]]
device = "numpy"
kind = "bench"
at_least = 0.5
"""


def test_a_row_of_the_matrix_makes_a_cell_a_bench(tmp_path):
    (tmp_path / "m.toml").write_text(MATRIX)
    timed, judged = cells(read_matrix(tmp_path / "m.toml"))
    assert (timed.kind, timed.at_least, timed.gates, timed.diagnose) == ("bench", 0.5, (), False)
    assert judged.kind == "judged" and judged.gates
    (tmp_path / "m.toml").write_text(MATRIX.replace('"bench"', '"race"'))
    with pytest.raises(UsageError, match=r"include\.0\.kind"):
        read_matrix(tmp_path / "m.toml")


@pytest.mark.parametrize(("at_least", "verdict"), first([(50.0, "fail"), (0.01, "pass")]))
def test_a_bench_keeps_its_ratio_with_limits(shallow_golden, tmp_path, monkeypatch, at_least, verdict):
    """By the processors' clock: what else runs on the machine may stretch eleven short steps to anything."""
    monkeypatch.setattr("parity.bench.request.perf_counter", process_time)
    model, case = shallow_golden.manifest.model, shallow_golden.manifest.case
    cell = Cell(
        axes=CellAxes(case="chat", device="numpy", family="peagle", k=case.k, tp=1, policy="float32"),
        target=model.target.path,
        drafter=model.drafter.path,
        prompts="prompts.jsonl",
        max_new_tokens=case.max_new_tokens,
        golden=str(shallow_golden.folder),
        device="numpy",
        precision="float32",
        gates=(),
        kind="bench",
        at_least=at_least,
    )
    result = judge_cell("night", cell, shallow_golden, tmp_path)
    assert result.verdict == verdict, result.findings
    (ratio,) = (metric for metric in result.metrics if metric.stage == "bench")
    assert (ratio.name, ratio.unit, ratio.bound) == ("over_plain", "ratio", at_least)
    assert result.over_plain == ratio.value
    assert ratio.low < ratio.value < ratio.high
    assert bool(result.reproduce) == (verdict == "fail") and (verdict == "pass" or "parity bench" in result.reproduce)
    assert CellResult.model_validate_json(result.model_dump_json(), strict=True) == result
