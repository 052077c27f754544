"""What is asked of a golden: options that no dump takes, refused before torch or a checkpoint is loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

from parity.errors import UsageError
from parity.golden.smaller import Smaller
from parity.kv_cache import KVFormats
from parity.partial_kv import PartialKV
from parity.sampling import read_sampling
from parity.schedule import scheduled

OPTIONS = {
    "python": "vllm-python",
    "partial_kv": "partial-kv",
    "kv_cache": "kv-cache",
    "sketch_seed": "sketch-seed",
    "max_bytes": "max-bytes",
}
"""Options of a reference that are not called as the request's field."""

KEPT = tuple(one.name for one in fields(Smaller))
"""Options that say what is kept of a dump's tensors."""

NOT_OFFICIAL = ("partial_kv", "kv_cache", "sample")
"""Fields of the references' own request that the official EAGLE has nothing for."""


def refuse_options(reference: str, k: int | Sequence[int], max_new_tokens: int, options: Mapping[str, Any]) -> None:
    """Refuse what does not go alone or together, whatever the checkpoints and the prompts are.

    Args:
        options: fields of the reference's request by name; those that nobody named are left out.

    Raises:
        UsageError: an option, as the command line calls it, and what is due.
    """
    scheduled(k)
    if max_new_tokens < 1:
        raise UsageError(f"--max-new-tokens {max_new_tokens}: at least 1 is needed")
    given = {name: value for name, value in options.items() if value}
    if reference == "eagle" and (theirs := [name for name in NOT_OFFICIAL if name in given]):
        raise UsageError(f"--{OPTIONS.get(theirs[0], theirs[0])} is no option of --reference eagle")
    if "sample" in given:
        read_sampling(given["sample"])
    elif "seed" in given:
        raise UsageError("--seed is of --sample: greedy tokens are not drawn")
    PartialKV.parse(given.get("partial_kv", ""))
    KVFormats.parse(given.get("kv_cache", ""))
    if reference == "plain":
        _refuse_in_files(options.get("memory") is not None, given)
    _refuse_kept(asked_smaller(options), given)


def _refuse_in_files(stored: bool, given: Mapping[str, Any]) -> None:
    """Of the plain target, whose weights may stay in their files."""
    if not stored and given.get("batch", 1) > 1:
        raise UsageError("--batch goes with --memory: weights that are in memory are not visited")
    if stored and "kv_cache" in given:
        raise UsageError("--kv-cache goes with weights in memory, not with --memory")
    if stored and given.get("roundings", 1) > 1:
        raise UsageError("--memory goes with one rounding: others need all weights in another order")


def _refuse_kept(smaller: Smaller, given: Mapping[str, Any]) -> None:
    kept = smaller.kept()
    if kept and "sample" in given:
        raise UsageError("--sketch and --logits are of greedy goldens: what tokens are drawn from is needed whole")
    if (kept or smaller.positions) and "kv_cache" in given:
        raise UsageError(
            "--sketch, --logits and --positions are of goldens without --kv-cache: such caches are kept whole"
        )


def asked_smaller(options: Mapping[str, Any]) -> Smaller:
    """What these options keep."""
    return Smaller(**{name: options[name] for name in KEPT if name in options})


def refuse_unknown(reference: str, takes: Collection[str], schedule: Sequence[int], options: Mapping[str, Any]) -> None:
    """Refuse what a reference does not take.

    Args:
        takes: the fields of its request.
        schedule: K of each round in turn, where it changes.

    Raises:
        UsageError: an option that it has no field for.
    """
    if schedule and (reference == "eagle" or "schedule" not in takes):
        raise UsageError(f"--reference {reference} drafts K tokens in every round: name one number with -k")
    for name in sorted(options.keys() - takes):
        raise UsageError(f"--{OPTIONS.get(name, name)} is no option of --reference {reference}")
