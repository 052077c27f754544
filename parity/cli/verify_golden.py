"""`parity verify-golden`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from parity.cli.common import json_option, open_golden, with_checkpoints, write_json


@click.command("verify-golden")
@click.argument("golden", type=click.Path(path_type=Path), required=False, metavar="[GOLDEN]")
@with_checkpoints
@json_option
def verify_golden(golden, json_file) -> None:
    """Dump the case of a GOLDEN (the newest one by default) once more and compare every tensor's bytes.

    Prompts, K, budget, stages, roundings and threads are the golden's own. Exit code 0: all alike; 1: something is
    not; 2: a checkpoint changed, or the golden's files are damaged.
    """
    from parity.reports.verified import print_verified

    found = verify(open_golden(golden))
    write_json(json_file, found.to_dict())
    print_verified(found)
    sys.exit(found.exit_code)


def verify(golden):
    """Both dumps, compared."""
    from parity.cli.golden import make_golden
    from parity.golden.verify import check_bytes, verified, write_prompts
    from parity.partial import scratch

    how = _made(golden)
    check_bytes(golden)
    manifest = golden.manifest
    with scratch("verify") as folder:
        again = make_golden(
            Path(manifest.model.target.path),
            Path(manifest.model.drafter.path),
            write_prompts(golden, folder / "prompts.jsonl"),
            manifest.case.k,
            manifest.case.max_new_tokens,
            manifest.stages,
            manifest.producer.threads,
            folder / "again",
            **how,
        )
        return verified(golden, again)


def _made(golden):
    """The reference that made a golden, and the options it was given."""
    from parity.errors import UsageError

    manifest = golden.manifest
    producer = manifest.producer
    if not producer.modules:
        raise UsageError(f"{golden.folder} was imported: nothing here can dump it once more")
    if "parity.references.eagle_capture" in producer.modules:
        raise UsageError(
            f"{golden.folder} holds the official EAGLE's stages; only `--reference eagle` makes them again"
        )
    if producer.name == "vllm":
        floor = "bfloat16" in golden.variants()
        batch = int(producer.notes["prompts at a time"])
        return {"reference": "vllm", "batch": batch, "floor": floor, "roundings": manifest.case.roundings}
    plain = "parity.references.plain" in producer.modules
    return {"reference": "plain" if plain else "own", "roundings": manifest.case.roundings}
