"""What `parity shapes` prints: the inventory of a run, and how each multiplication did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from rich.table import Table
from rich.text import Text

from parity.compare.report import FAIL
from parity.gemm.harness import GemmReport, GemmResult
from parity.reports.console import STYLE, console
from parity.seam import Gemm


def print_inventory(inventory: dict[str, Any]) -> None:
    """Multiplications, then programs, of `parity.device.inventory.Inventory.to_dict`."""
    out, run = console(), inventory["run"]
    ranks = f"one of {run['tp']} ranks, " if run["tp"] > 1 else ""
    gemms = inventory["gemms"]
    out.print(
        f"{run['precision']}, {ranks}experts {run['moe']}, K = {run['k']}, {run['prompt']} prompt tokens, "
        f"{run['tokens']} new tokens in {inventory['rounds']} rounds of {run['emitted']}: "
        f"{len(gemms)} shapes of multiplication, {sum(gemm['calls'] for gemm in gemms)} calls; "
        f"{len(inventory['programs'])} programs",
        soft_wrap=True,
    )
    out.print(_gemms(gemms))
    out.print(_programs(inventory["programs"]))


def print_finding(finding: GemmResult, heading: bool) -> None:
    """One line as soon as a shape is done; figures in x the floor and in ULP of bfloat16."""
    out = console()
    if heading:
        out.print(
            f"{'verdict':<8} {'shape':<24} {'program':<22} {'noise':>7} {'worst':>7} {'sums':>7} "
            f"{'rms ULP':>9} {'max ULP':>9}  judged",
            soft_wrap=True,
        )
    gemm = finding.gemm
    figures = (
        f"{finding.noise:7.3g} {finding.worst:7.3g} {finding.sums:7.3g} {finding.rms_ulp:9.2e} {finding.max_ulp:9.2e}"
    )
    pieces = f", in {finding.pieces} pieces" if finding.pieces > 1 else ""
    text = f" {gemm!s:<24} {_dtypes(gemm.dtype, gemm.values):<22} {figures}  {finding.judged}{pieces}"
    out.print(Text.assemble((f"{finding.verdict:<8}", STYLE[finding.verdict]), text), soft_wrap=True, highlight=False)
    if finding.why:
        out.print(f"         {finding.why}", soft_wrap=True)


def print_findings(findings: GemmReport) -> None:
    """The last line: the verdict, and the shape that failed first."""
    failed, last = [finding for finding in findings.results if finding.verdict == FAIL], ""
    if failed:
        last = f"; {len(failed)} of {len(findings.results)} shapes, first {failed[0].gemm}: {failed[0].why}"
        last += f"; reproduce: the same command with --gemm {failed[0].gemm}"
    console().print(
        Text.assemble((f"shapes verdict: {findings.verdict}", STYLE[findings.verdict]), last), soft_wrap=True
    )


def _gemms(rows: Iterable[dict[str, Any]]) -> Table:
    table = _table("shape (batch x) M x K x N", "program", "calls", "where", "weight", "layers")
    for row in rows:
        gemm = Gemm(**{name: value for name, value in row.items() if name not in ("calls", "places")})
        places = row["places"]
        where = _joined(f"{place['phase']} {place['side']}" for place in places)
        kinds = Counter[str]()
        for place in places:
            kinds[place["kind"]] += place["calls"]
        layers = ", ".join(f"{calls} {kind}" for kind, calls in kinds.items() if kind)
        weights = _joined(place["weight"] for place in places)
        table.add_row(str(gemm), _dtypes(gemm.dtype, gemm.values), str(row["calls"]), where, weights, layers)
    return table


def _programs(rows: Iterable[dict[str, Any]]) -> Table:
    table = _table("program", "compiled for", "arrays", "static", "calls")
    for row in rows:
        arrays, static = row["arrays"], _runs(row["static"])
        calls = ", ".join(f"{calls} {phase}" for phase, calls in row["calls"].items())
        table.add_row(
            row["kernel"].removeprefix("parity.device."), " ".join(arrays[:2]), str(len(arrays)), static, calls
        )
    return table


def _runs(static: Iterable[str]) -> str:
    """Static arguments, repeats counted: one window a layer says little."""
    return ", ".join(value if count == 1 else f"{count} x {value}" for value, count in Counter(static).items())


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in ("calls", "arrays") else "left", overflow="fold")
    return table


def _joined(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def _dtypes(dtype: str, values: str) -> str:
    return dtype if dtype == values else f"{dtype} of {values}"
