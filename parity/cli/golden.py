"""`parity dump-golden` and `parity inspect`."""

from __future__ import annotations

from pathlib import Path

import click

from parity.cli.common import fresh, json_option, progress, stage_option, tiny, write_json
from parity.errors import UsageError

folder = click.Path(path_type=Path)


@click.command("dump-golden")
@click.option("--target", type=folder, metavar="CKPT", help="Target checkpoint folder; the tiny pair's by default.")
@click.option("--drafter", type=folder, metavar="CKPT", help="Drafter checkpoint folder; the tiny pair's by default.")
@click.option("--prompts", type=folder, metavar="FILE", help="JSON lines with messages, text or ids; the tiny pair's chat prompts by default.")
@click.option("-k", "k", type=int, default=4, show_default=True, help="K, draft tokens per round.")
@click.option("--max-new-tokens", type=int, default=48, show_default=True, help="Token budget of each prompt.")
@stage_option
@click.option("--reference", type=click.Choice(["own", "vllm"]), default="own", show_default=True, help="Who computes: the PyTorch references, or vLLM in its own environment (docs/vllm.md).")
@click.option("--vllm-python", type=folder, metavar="FILE", help="Python that has vLLM; $PARITY_VLLM_PYTHON or .venv-vllm/bin/python by default.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Prompts that vLLM runs at a time.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of the references; the same number gives the same bits.")
@click.option("--roundings", type=click.IntRange(min=1), default=1, show_default=True, help="bfloat16 runs behind each noise floor, each with its sums in another order.")
@click.option("--out", type=folder, metavar="DIR", help="Folder to write; a new one under .parity/goldens by default.")
@json_option
def dump_golden(
    target, drafter, prompts, k, max_new_tokens, stages, reference, vllm_python, batch, threads, roundings, out, json_file
) -> None:
    """Dump the references' tensors, stage by stage: the golden a device is held against."""
    case = target, drafter, prompts, k, max_new_tokens, stages, threads, out
    if reference == "vllm":
        if roundings != 1:
            raise UsageError("--roundings is the PyTorch references': vLLM runs once in each precision")
        made = make_vllm_golden(*case, batch, vllm_python)
    else:
        if vllm_python or batch != 1:
            raise UsageError("--vllm-python and --batch go with --reference vllm")
        made = make_golden(*case, roundings)
    from reports.dumps import print_dump

    write_json(json_file, print_dump(made))


def make_golden(target, drafter, prompts, k, max_new_tokens, stages=(), threads=1, out=None, roundings=1):
    """Run the references; the opened golden."""
    from parity.cli.wiring import references

    case = target, drafter, prompts, k, max_new_tokens, stages, out
    return _made(references(threads), *case, roundings=roundings)


def make_vllm_golden(target, drafter, prompts, k, max_new_tokens, stages=(), threads=1, out=None, batch=1, python=None, floor=True):
    """Run vLLM; the opened golden."""
    from parity.cli.wiring import vllm_capture

    case = target, drafter, prompts, k, max_new_tokens, stages, out
    return _made(vllm_capture(), *case, threads=threads, batch=batch, python=python, floor=floor)


def _made(produce, target, drafter, prompts, k, max_new_tokens, stages, out, **options):
    """What a producer dumps, of the tiny pair where nothing is named."""
    from parity.golden.store import Dump

    with progress("golden") as bar:
        made = produce.dump_golden(
            produce.Request(
                target=target or tiny("target"),
                drafter=drafter or tiny("drafter"),
                prompts=prompts or tiny("prompts/chat.jsonl"),
                k=k,
                max_new_tokens=max_new_tokens,
                stages=stages,
                out=out or fresh("goldens", (target or tiny("target")).name),
                progress=bar,
                **options,
            )
        )
    return Dump(made)


@click.command()
@click.argument("directory", type=folder, metavar="DIR")
@json_option
def inspect(directory, json_file) -> None:
    """Show what a golden or a run folder holds: producer, case, stages, acceptance."""
    from parity.golden.store import Dump
    from reports.dumps import print_dump

    write_json(json_file, print_dump(Dump(directory), stages=True))
