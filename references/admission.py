"""What fits a pair by its two config.json, before any weights are read: K, partial caches, and each prompt's rows."""

from __future__ import annotations

from collections.abc import Mapping

from parity.errors import UsageError
from parity.kv_cache import KVFormats
from parity.partial_kv import PartialKV
from parity.references.checkpoint import TARGET, read_config
from parity.references.drafter_config import FamilyConfig
from parity.references.drafting import drafter_config
from parity.references.fits import admit_drafts, admit_rows
from parity.references.prompts import read_prompts
from parity.references.request import GoldenRequest


def admitted(request: GoldenRequest) -> list[tuple[str, list[int]]]:
    """The prompts of a request, id and token ids, once they and its options fit the pair.

    Raises:
        UsageError: a config.json or the prompts cannot be read, or K, the caches, the budget or a prompt does not fit.
    """
    drafter = drafter_config(request.drafter)
    raw = read_config(request.target, TARGET)
    if raw.get("vocab_size") is None:
        raise UsageError(f"{request.target / 'config.json'}: vocab_size is missing")
    sides = {"target": raw.get("max_position_embeddings") or drafter.max_positions, "drafter": drafter.max_positions}
    ks = getattr(request, "schedule", ()) or (request.k,)
    admit_drafts(ks, drafter)
    _admit_caches(request, drafter, min(sides.values()))
    prompts = read_prompts(request.prompts, request.target, raw["vocab_size"])
    for name, ids in prompts:
        _admit_prompt(f"{request.prompts}: prompt {name}", len(ids), request.max_new_tokens, max(ks), sides)
    return prompts


def _admit_caches(request: GoldenRequest, drafter: FamilyConfig, positions: int) -> None:
    partial_kv, kv_cache = (getattr(request, name, "") for name in ("partial_kv", "kv_cache"))
    PartialKV.of(partial_kv, drafter.family, positions)
    KVFormats.of(kv_cache, drafter.family, partial_kv)


def _admit_prompt(where: str, length: int, budget: int, most: int, sides: Mapping[str, int]) -> None:
    try:
        admit_rows(length, budget, most, sides)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
