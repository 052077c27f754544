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
@click.option("--reference", type=click.Choice(["own", "eagle"]), default="own", show_default=True, help="Who computes: the PyTorch references, or the official EAGLE drafter beside them (docs/eagle3.md).")
@click.option("--checkout", type=folder, metavar="DIR", help="A checkout of SafeAILab/EAGLE, for --reference eagle.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of the references; the same number gives the same bits.")
@click.option("--roundings", type=click.IntRange(min=1), default=1, show_default=True, help="bfloat16 runs behind each noise floor, each with its sums in another order.")
@click.option("--out", type=folder, metavar="DIR", help="Folder to write; a new one under .parity/goldens by default.")
@json_option
def dump_golden(
    target, drafter, prompts, k, max_new_tokens, stages, reference, checkout, threads, roundings, out, json_file
) -> None:
    """Dump the references' tensors, stage by stage: the golden a device is held against."""
    if (reference == "eagle") != (checkout is not None):
        raise UsageError("--reference eagle and --checkout DIR go together")
    made = make_golden(target, drafter, prompts, k, max_new_tokens, stages, threads, out, roundings, checkout)
    from reports.dumps import print_dump

    write_json(json_file, print_dump(made))


def make_golden(
    target, drafter, prompts, k, max_new_tokens, stages=(), threads=1, out=None, roundings=1, checkout=None
):
    """Run the references, or the official EAGLE of a checkout; the opened golden."""
    from parity.cli.wiring import eagle_capture, references
    from parity.golden.store import Dump

    produce = references(threads)
    with progress("golden") as bar:
        request = produce.Request(
            target=target or tiny("target"),
            drafter=drafter or tiny("eagle3" if checkout else "drafter"),
            prompts=prompts or tiny("prompts/chat.jsonl"),
            k=k,
            max_new_tokens=max_new_tokens,
            stages=stages,
            out=out or fresh("goldens", (target or tiny("target")).name),
            roundings=roundings,
            progress=bar,
        )
        made = eagle_capture().dump_golden(request, checkout) if checkout else produce.dump_golden(request)
    return Dump(made)


@click.command()
@click.argument("directory", type=folder, metavar="DIR")
@json_option
def inspect(directory, json_file) -> None:
    """Show what a golden or a run folder holds: producer, case, stages, acceptance."""
    from parity.golden.store import Dump
    from reports.dumps import print_dump

    write_json(json_file, print_dump(Dump(directory), stages=True))
