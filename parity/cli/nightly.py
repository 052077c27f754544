"""`parity nightly`."""

from __future__ import annotations

from pathlib import Path


def judge_cell(night: str, cell, golden, folder: Path):
    """One cell judged in this process on an opened golden; `folder` takes the runs."""
    from parity.cli.common import published_configs
    from parity.cli.wiring import baseline, builder, rotary
    from parity.gates.bench import Bench
    from parity.nightly.judge import judge

    build = builder(cell.device, golden)
    bench = Bench(golden, cell.device, build, cell.precision, folder, cell.histories, bounds=cell.bounds or None)
    bench.rotate, bench.configs = rotary(cell.device), published_configs()
    clocked = baseline(golden, cell.precision) if cell.speed_tokens else None
    return judge(night, cell, bench, clocked, (lambda: _diagnosed(cell, golden, folder)) if cell.diagnose else None)


def _diagnosed(cell, golden, folder: Path):
    """What a diagnosis of the cell's device says, in words."""
    from parity.cli.diagnose import diagnose_device
    from parity.nightly.records import Named

    (folder / "diagnosis").mkdir()
    found = diagnose_device(golden, None, cell.device, cell.precision, cell.bounds or None, 1, folder / "diagnosis")
    if not found:
        return None
    if isinstance(found, list):
        causes = [(one.id or "", f"{one.says or 'no known defect'}: {one.check.evidence}", one.fix) for one in found]
        named = [f"{one.says} ({one.id})" for one in found if one.id]
        return Named(causes=tuple(causes), words="; ".join(dict.fromkeys(named)) or "no reading fits")
    causes = [(cause.hypothesis, f"{cause.says} explains {cause.explained:.2%} of {cause.stage}'s error", cause.fix) for cause in found.causes]
    words = "; ".join(f"{cause.says} ({cause.hypothesis})" for cause in found.causes) or "no hypothesis fits"
    rest = str(found.unexplained.stage) if found.unexplained else ""
    return Named(causes=tuple(causes), unexplained=rest, words=words)
