"""`parity bench`, `parity bench compare` and `parity bench plan`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from parity.cli.options import Amount, Command, OutputFile, json_option, precision_option, write_json
from parity.cli.progress_bar import progress

SCENARIOS = ("baseline", "single", "batch", "large-context", "stress")
MACHINES = ("this", "trainium1", "trainium2")
MOST = 1024
"""Drafts of a round."""


class CountsParameter(click.ParamType[Any]):
    """Several numbers of drafts: `4`, `1,2,4`, `1-10`."""

    name = "N[,N…]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """As numbers, in the order they are named."""
        if isinstance(value, tuple):
            return value
        found: list[int] = []
        for part in str(value).split(","):
            first, dash, last = part.strip().partition("-")
            if not first.isdecimal() or (dash and not last.isdecimal()) or len(part) > 9 or int(last or first) > MOST:
                self.fail(f"{value} is no list of numbers, as in 4, 1,2,4 or 1-10", param, ctx)
            if int(last or first) < int(first):
                self.fail(f"{part.strip()} ends before it begins", param, ctx)
            found += range(int(first), int(last or first) + 1)
        if twice := [number for number in dict.fromkeys(found) if found.count(number) > 1]:
            self.fail(f"{value} names {twice[0]} twice", param, ctx)
        return tuple(found)


class Rates(click.ParamType[Any]):
    """Acceptance of each draft in turn: `0.8,0.7,0.6`."""

    name = "A[,A…]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """As probabilities."""
        try:
            found = tuple(float(part) for part in str(value).split(","))
        except ValueError:
            found = ()
        if not found or not all(0 <= one <= 1 for one in found):
            self.fail(f"{value} is no list of probabilities, as in 0.8,0.7,0.6", param, ctx)
        return found


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_what = _options(
    click.option(
        "--device",
        "devices",
        multiple=True,
        metavar="DEVICE",
        help="numpy, xla, nkipy, neuron, or package.module:factory, with options as in xla,loop=asynchronous; may be "
        "repeated.  [default: numpy]",
    ),
    click.option(
        "--target", type=click.Path(path_type=Path), metavar="CKPT", help="Target; the tiny pair's by default."
    ),
    click.option(
        "--drafter", type=click.Path(path_type=Path), metavar="CKPT", help="Drafter; the tiny pair's by default."
    ),
    precision_option,
    click.option(
        "--prompts",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="JSON lines with messages, text or ids, or with --field; may be repeated. The tiny pair's chat and raw "
        "prompts by default.",
    ),
    click.option(
        "--field", metavar="NAME", help="The prompt's field in --prompts: question (GSM8K), turns (SPEED-Bench)."
    ),
    click.option("--raw", is_flag=True, help="With --field: its text goes in as it is, not as a user's message."),
    click.option("--first", type=click.IntRange(min=1), default=5, show_default=True, help="Prompts of each file."),
)
_cells = _options(
    click.option(
        "--scenario",
        "scenarios",
        multiple=True,
        type=click.Choice(SCENARIOS),
        help="May be repeated.  [default: single]",
    ),
    click.option(
        "--context",
        "contexts",
        multiple=True,
        metavar="short|8K|N",
        help="Positions that prompts are lengthened to by repeating the file's text; may be repeated. The scenario's "
        "own by default.",
    ),
    click.option(
        "-k",
        "--k",
        "ks",
        type=CountsParameter(),
        default="4",
        show_default=True,
        help="Every K that is tried, as in 1-10 or 1,2,4.",
    ),
    click.option("--lanes", type=click.IntRange(min=2), metavar="B", help="Sequences at once in batch and stress; 5."),
    click.option(
        "--controller", is_flag=True, help="Beside fixed K: K chosen round by round, up to the largest (docs/bench.md)."
    ),
    click.option("--reference", is_flag=True, help="The PyTorch references' loop runs beside the devices."),
    click.option(
        "--peer", type=click.Choice(["vllm"]), help="A serving engine runs beside them, in its own environment."
    ),
    click.option(
        "--beside-k",
        "beside_ks",
        type=CountsParameter(),
        default=(),
        help="K of the reference and the peer, some of -k.  [default: all]",
    ),
)
_how = _options(
    click.option("--max-new-tokens", type=click.IntRange(min=2), default=48, show_default=True, help="Token budget."),
    click.option(
        "--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Timed runs of every cell."
    ),
    click.option(
        "--warm-ups", type=click.IntRange(min=0), default=1, show_default=True, help="Runs before, to compile."
    ),
    click.option(
        "--clock",
        type=click.Choice(["wall", "processor"]),
        default="wall",
        show_default=True,
        help="processor: seconds that were computed, on a busy machine; of devices that wait for nothing.",
    ),
    click.option("--memory", is_flag=True, help="Measure peak memory, in a process of its own for each device and K."),
    click.option("--roofline", is_flag=True, help="Measure the machine's peaks, and what they allow a round."),
    click.option(
        "--at-least",
        type=Amount(or_zero=True),
        default=1.0,
        show_default=True,
        metavar="X",
        help="What speculation has to be over plain decoding at its best K, by the lower end of the interval; 0: "
        "nothing.",
    ),
    click.option("--plot", type=OutputFile(), metavar="FILE", help="Draw predicted and measured as SVG."),
    click.option(
        "--markdown",
        type=OutputFile(),
        metavar="FILE",
        help="Write the tables by prompt into this page, between its marks or at its end.",
    ),
)


@click.group(invoke_without_command=True)
@_what
@_cells
@_how
@json_option
@click.pass_context
def bench(
    ctx: click.Context, /, json_file: Path | None, plot: Path | None, markdown: Path | None, **asked: Any
) -> None:
    """Time devices with and without drafts, interleaved, and say whether speculation pays.

    Every timed run's tokens are compared with plain decoding's of the same device: where they differ it fails.
    Exit code 1: they differ, or speculation is slower than --at-least; 3: that is not shown.
    """
    if ctx.invoked_subcommand is not None:
        return
    from parity import files
    from parity.bench.measure import run_bench
    from parity.reports.bench import print_bench
    from parity.reports.bench_page import bench_page, put_between
    from parity.reports.bench_plot import speed_up_plot

    with progress("bench") as bar:
        report = run_bench(_request(bar, **asked))
    print_bench(report)
    write_json(json_file, report.to_dict)
    if plot:
        files.put(plot, speed_up_plot(report).encode(), f"--plot {plot}")
    if markdown:
        page = markdown.read_text(encoding="utf-8") if markdown.is_file() else ""
        files.put(markdown, put_between(page, bench_page(report)).encode(), f"--markdown {markdown}")
    sys.exit(report.exit_code)


def _request(bar: Any, devices: tuple[str, ...], target: Path | None, drafter: Path | None, **asked: Any) -> Any:
    """What the options ask for."""
    from parity.bench.request import BenchRequest
    from parity.bench.workload import read_workload
    from parity.bundled import tiny
    from parity.errors import UsageError

    pair = target or tiny("target"), drafter or tiny("drafter")
    prompts, field, raw, first = (asked.pop(name) for name in ("prompts", "field", "raw", "first"))
    if (field or raw) and not prompts:
        raise UsageError("--field and --raw say how --prompts is read: name a file")
    if raw and not field:
        raise UsageError("--raw says how the text of --field goes in")
    paths = prompts or (tiny("prompts/chat.jsonl"), tiny("prompts/raw.jsonl"))
    workloads = tuple(read_workload(path, pair, field or "", raw, first) for path in paths)
    if len({one.name for one in workloads}) < len(workloads):
        raise UsageError("--prompts: two files of one name are one workload; rename one of them")
    devices = devices or ("numpy",)
    scenarios = asked.pop("scenarios") or ("single",)
    return BenchRequest(
        workloads, *pair, devices=devices, scenarios=scenarios, peer=asked.pop("peer") or "", progress=bar, **asked
    )


@bench.command("compare")
@click.argument("first", type=click.Path(path_type=Path), metavar="A.json")
@click.argument("second", type=click.Path(path_type=Path), metavar="B.json")
@click.option("--anyway", is_flag=True, help="Compare benches of other machines or cases; what differs is told.")
@json_option
def compare_benches(first: Path, second: Path, anyway: bool, json_file: Path | None) -> None:
    """Compare two files of `parity bench --json`: B over A, cell by cell, with limits.

    Exit code 1: a figure is slower beyond its limits, or B failed alone; 3: a cell is missing or ended with an error,
    nothing was repeated, limits hold half the rate, A failed alone, or one of the two was inconclusive.
    """
    from parity.api import compare_benches as compare
    from parity.reports.bench import print_comparison

    found = compare(first, second, anyway)
    print_comparison(found)
    write_json(json_file, lambda: found.model_dump(mode="json"))
    sys.exit(found.exit_code)


@bench.command("plan")
@click.option(
    "--model", type=click.Choice(("tiny", "20b", "120b")), default="20b", show_default=True, help="Configs that ship."
)
@click.option(
    "--device", default="numpy,moe=gathered", show_default=True, help="Whose work: one with a function `work`."
)
@click.option("--machine", type=click.Choice(MACHINES), default="trainium2", show_default=True, help="One core of it.")
@click.option("-k", "--k", "ks", type=CountsParameter(), default="1-10", show_default=True, help="Every K.")
@click.option(
    "--acceptance",
    type=Rates(),
    required=True,
    help="Of each draft, those before it accepted; the last one stands for those behind it.",
)
@click.option("--context", type=click.IntRange(min=2), default=1024, show_default=True, help="Committed positions.")
@precision_option
@json_option
def plan(
    model: str,
    device: str,
    machine: str,
    ks: tuple[int, ...],
    acceptance: tuple[float, ...],
    context: int,
    precision: str,
    json_file: Path | None,
) -> None:
    """What a machine's peaks allow speculation, from configs alone: nothing is loaded or run.

    Peaks of trainium1 and trainium2 are those that AWS publishes, of one core; those of this machine are measured.
    """
    from dataclasses import asdict

    from parity.bench.roofline import plan_rounds
    from parity.reports.bench import print_plan

    rows, peaks = plan_rounds(device, model, ks, acceptance, context, precision, machine)
    print_plan(rows, peaks)
    write_json(json_file, {"peaks": asdict(peaks), "rounds": [asdict(row) for row in rows]})
