"""How fast a device is, and whether speculation pays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.api.arguments import File, path_or_none

if TYPE_CHECKING:
    from parity.bench.compare import BenchComparison
    from parity.bench.records import BenchReport


def bench_device(
    device: str | Sequence[str] = "numpy",
    prompts: File | None = None,
    ks: Sequence[int] = (4,),
    *,
    target: File | None = None,
    drafter: File | None = None,
    field: str = "",
    first: int | None = 5,
    precision: str = "bfloat16",
    **asked: Any,
) -> BenchReport:
    """Time devices with and without drafts, in turn, and say whether speculation pays.

    Args:
        device: one or several, as `run_device` takes them.
        prompts: JSON lines; the tiny pair's chat prompts by default.
        ks: every number of drafts that is tried.
        target, drafter: checkpoints; the tiny pair by default.
        field: of the prompts, where they have another layout.
        first: so many prompts; all where None.
        asked: what else `parity.bench.BenchRequest` takes: `scenarios`, `repeats`, `max_new_tokens`, `reference`, ...

    Raises:
        UsageError: no such device, checkpoint, prompt or scenario.
    """
    from parity.bench.measure import run_bench
    from parity.bench.request import BenchRequest
    from parity.bench.workload import read_workload
    from parity.bundled import tiny

    pair = path_or_none(target) or tiny("target"), path_or_none(drafter) or tiny("drafter")
    workload = read_workload(path_or_none(prompts) or tiny("prompts/chat.jsonl"), pair, field, first=first)
    devices = (device,) if isinstance(device, str) else tuple(device)
    return run_bench(BenchRequest((workload,), *pair, devices=devices, ks=tuple(ks), precision=precision, **asked))


def compare_benches(first: File, second: File, anyway: bool = False) -> BenchComparison:
    """Compare two files of `parity bench --json`: the second over the first, cell by cell, with limits.

    Args:
        anyway: they may be of other machines or cases.

    Raises:
        UsageError: a file is no bench, or they are not of one machine and case.
    """
    from parity.bench.compare import compare_reports
    from parity.bench.records import read_bench

    return compare_reports(read_bench(Path(first)), read_bench(Path(second)), anyway)
