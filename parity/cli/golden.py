"""`parity dump-golden` and `parity inspect`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from parity.cli.options import Amount, json_option, smaller_option, stage_option, write_json
from parity.cli.progress_bar import progress
from parity.schedule import read_k

folder = click.Path(path_type=Path)


@click.command("dump-golden")
@click.option("--target", type=folder, metavar="CKPT", help="Target checkpoint folder; the tiny pair's by default.")
@click.option("--drafter", type=folder, metavar="CKPT", help="Drafter checkpoint folder; the tiny pair's by default.")
@click.option(
    "--prompts",
    type=folder,
    metavar="FILE",
    help="JSON lines with messages, text or ids; the tiny pair's chat prompts by default.",
)
@click.option(
    "-k",
    "k",
    callback=lambda context, parameter, text: read_k(text),
    default="4",
    show_default=True,
    metavar="N[,N…]",
    help="K, draft tokens per round; 4,0,2 for each round in turn, from the first one again.",
)
@click.option(
    "--partial-kv",
    metavar="S+R+WxP",
    help="The drafter attends to S first, R retrieved and W last pages of P rows of its cache; to all by default "
    "(docs/partial-kv.md).",
)
@click.option(
    "--kv-cache",
    metavar="FORMAT",
    help="Keep the caches in fp8_e4m3 or fp8_e5m2, with the scales of the checkpoints; one side alone as in "
    "target=fp8_e4m3, or each its own; in the dtype of the pass by default (docs/fp8-caches.md).",
)
@click.option(
    "--sample",
    metavar="SETTINGS",
    help="Draw tokens, by temperature=0.7,top_k=20,top_p=0.9,min_p=0.02,rule=residual (or match), those named; greedy "
    "by default (docs/sampling.md).",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Of the random numbers of --sample; 0 by default.")
@click.option("--max-new-tokens", type=int, default=48, show_default=True, help="Token budget of each prompt.")
@stage_option
@smaller_option
@click.option(
    "--reference",
    type=click.Choice(["own", "plain", "vllm", "eagle"]),
    default="own",
    show_default=True,
    help="Who computes: the PyTorch references, the same with a target written from the equations, vLLM in its own "
    "environment (docs/vllm.md), or the official EAGLE-3 drafter (docs/eagle3.md).",
)
@click.option(
    "--vllm-python",
    "python",
    type=folder,
    metavar="FILE",
    help="vllm: Python that has it; $PARITY_VLLM_PYTHON or .venv-vllm/bin/python by default.",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    help="vllm, and plain with --memory: prompts that it runs at a time; 1 by default.",
)
@click.option("--checkout", type=folder, metavar="DIR", help="eagle: a checkout of SafeAILab/EAGLE.")
@click.option(
    "--roundings",
    type=click.IntRange(min=1),
    help="bfloat16 runs behind each noise floor, each with its sums in another order; by default 1, vllm: 3.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Threads of the references; the same number gives the same bits.",
)
@click.option(
    "--memory",
    type=Amount(or_zero=True),
    metavar="GIB",
    help="plain: keep so much of the weights in memory, converted, and the rest in its files (docs/real-size.md); all "
    "of them by default.",
)
@click.option(
    "--resume",
    is_flag=True,
    default=None,
    help="own, plain, eagle: keep each prompt that is done in OUT.parts until the golden is whole, and go on there.",
)
@click.option("--plan", "planned", is_flag=True, help="Print what it will take, from configs and headers, and stop.")
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    help="Bytes that the golden never exceeds: it is refused, or ends, before.",
)
@click.option("--out", type=folder, metavar="DIR", help="Folder to write; a new one under .parity/goldens by default.")
@json_option
def dump_golden(
    target: Path | None,
    drafter: Path | None,
    prompts: Path | None,
    k: tuple[int, ...],
    max_new_tokens: int,
    stages: tuple[str, ...],
    reference: str,
    threads: int,
    out: Path | None,
    json_file: Path | None,
    planned: bool,
    **options: Any,
) -> None:
    """Dump the references' tensors, stage by stage: the golden a device is compared with."""
    from parity.producers import dump_golden as dump
    from parity.producers import plan_golden
    from parity.reports.dumps import print_dump, print_plan

    named = {name: value for name, value in options.items() if value is not None}
    case = target, drafter, prompts, k, max_new_tokens, stages, threads, out, reference
    if planned or options["max_bytes"]:
        plan = plan_golden(*case, **named)
        print_plan(plan, options["memory"])
        plan.refuse_beyond(options["max_bytes"])
    if planned:
        write_json(json_file, asdict(plan))
        return
    with progress("golden") as bar:
        made = dump(*case, progress=bar, **named)
    write_json(json_file, print_dump(made))


@click.command()
@click.argument("directory", type=folder, metavar="DIR")
@click.option("--all", "whole", is_flag=True, help="Every stage, layer by layer.")
@json_option
def inspect(directory: Path, whole: bool, json_file: Path | None) -> None:
    """Show what a golden or a run folder holds: producer, case, acceptance, and its stages by family."""
    from parity.golden.store import Dump
    from parity.reports.dumps import print_dump

    write_json(json_file, print_dump(Dump(directory), "all" if whole else "families"))
