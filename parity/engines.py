"""Several devices on one golden: each against the golden, and every pair against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from parity.compare import compare
from parity.compare.basis import Rerun
from parity.compare.between import DeviceDifference, compare_devices
from parity.compare.report import Report, conclude
from parity.golden.fields import Mode
from parity.golden.views import DumpView, TrustedGolden
from parity.policy import read_policy
from parity.reproducing import Argument, command_line

MODES: tuple[Mode, ...] = ("local", "chained")


@dataclass(frozen=True)
class EngineMatrix:
    """What devices show in both modes.

    Args:
        golden: the folder.
        precision: of all devices.
        devices: names, in the order asked for.
        alone: (mode, device) to its comparison with the golden.
        pairs: (mode, device, other device) to the comparison of the two.
        absent: engines that cannot run here, and why.
    """

    golden: str
    precision: str
    devices: tuple[str, ...]
    alone: dict[tuple[Mode, str], Report]
    pairs: dict[tuple[Mode, str, str], Report]
    absent: dict[str, str]

    @property
    def reports(self) -> list[Report]:
        """All comparisons."""
        return [*self.alone.values(), *self.pairs.values()]

    @property
    def verdict(self) -> str:
        """All of them joined by AND."""
        return conclude(report.verdict for report in self.reports)

    @property
    def exit_code(self) -> int:
        """The gravest one's: 1 fail, 3 inconclusive, 0 pass."""
        codes = {report.exit_code for report in self.reports}
        return next((code for code in (1, 3) if code in codes), 0)

    def columns(self, mode: Mode) -> dict[str, Report]:
        """The comparisons of one mode by name: every device, then every pair."""
        alone = {name: report for (one, name), report in self.alone.items() if one == mode}
        pairs = {f"{name} against {other}": report for (one, name, other), report in self.pairs.items() if one == mode}
        return alone | pairs

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "golden": self.golden,
            "precision": self.precision,
            "devices": self.devices,
            "absent": self.absent,
            "comparisons": [report.to_dict() for report in self.reports],
            "verdict": self.verdict,
            "exit_code": self.exit_code,
        }


def matrix(
    golden: TrustedGolden,
    devices: Sequence[str],
    precision: str,
    run: Callable[[str, Mode], DumpView],
    rerun: Rerun,
    policy: str | None = None,
    absent: dict[str, str] | None = None,
) -> EngineMatrix:
    """Run every device in both modes, and judge each alone and against every other one.

    Args:
        rerun: as for `parity.compare.compare`.
    """
    bounds = read_policy(policy, precision)
    alone, pairs = {}, {}
    case: dict[str, Argument] = {"golden": golden.folder, "precision": precision, "policy": policy or ""}
    for mode in MODES:
        runs = {name: run(name, mode) for name in devices}
        for name, made in runs.items():
            again = command_line("diff", device=name, mode=mode, **case)
            alone[mode, name] = replace(compare(golden, made, bounds, rerun=rerun), reproduce=again)
        for one, other in combinations(devices, 2):
            difference = DeviceDifference(golden, runs[one], runs[other])
            again = command_line("diff", device=one, against=other, mode=mode, **case)
            pairs[mode, one, other] = replace(compare_devices(golden, difference, bounds), reproduce=again)
    return EngineMatrix(str(golden.folder), precision, tuple(devices), alone, pairs, absent or {})
