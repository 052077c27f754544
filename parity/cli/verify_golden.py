"""`parity verify-golden`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from parity.cli.common import json_option, open_golden, write_json


@click.command("verify-golden")
@click.argument("golden", type=click.Path(path_type=Path), required=False, metavar="[GOLDEN]")
@json_option
def verify_golden(golden, json_file) -> None:
    """Dump the case of a GOLDEN (the newest one by default) once more and compare every tensor's bytes.

    Prompts, K, budget, stages, roundings and threads are the golden's own. Exit code 0: all alike; 1: something is
    not; 2: a checkpoint changed, or the golden's files are damaged.
    """
    from reports.verified import print_verified

    found = verify(open_golden(golden))
    write_json(json_file, found.to_dict())
    print_verified(found)
    sys.exit(found.exit_code)


def verify(golden):
    """Both dumps, compared."""
    from tempfile import TemporaryDirectory

    from parity.cli.golden import make_golden, make_vllm_golden
    from parity.errors import UsageError
    from parity.golden.verify import check_bytes, verified, write_prompts

    check_bytes(golden)
    manifest = golden.manifest
    if not manifest.producer.modules:
        raise UsageError(f"{golden.folder} was imported: nothing here can dump it once more")
    with TemporaryDirectory(prefix="parity-verify-") as folder:
        case = (
            Path(manifest.model.target.path),
            Path(manifest.model.drafter.path),
            write_prompts(golden, Path(folder) / "prompts.jsonl"),
            manifest.case.k,
            manifest.case.max_new_tokens,
            manifest.stages,
            manifest.producer.threads,
            Path(folder) / "again",
        )
        if manifest.producer.name == "vllm":
            batch, floor = int(manifest.producer.notes["prompts at a time"]), "bfloat16" in golden.variants()
            again = make_vllm_golden(*case, batch, floor=floor)
        else:
            again = make_golden(*case, manifest.case.roundings)
        return verified(golden, again)
