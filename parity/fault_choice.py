"""Which faults are planted, and in what golden: what a catalogue says of a fault, and the golden of a family."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from parity.bundled import scaled_pair, tiny
from parity.errors import UsageError
from parity.families import FAMILIES, Family
from parity.golden.trust import trusted
from parity.golden.views import TrustedGolden
from parity.producers import dump_golden
from parity.progress import Progress, quiet
from parity.seam import Device

PROMPTS: dict[Family, tuple[str, str]] = {
    "p-eagle": ("types-127-131", "strings-11-13"),
    "eagle-3": ("types-127-131", "operator-summary-11-13"),
    "n-gram": ("assignment-40-44", "types-156-158"),
    "draft-model": ("types-127-131", "debugger-69-73"),
    "dflash": ("types-127-131", "debugger-69-73"),
}


TOKENS: dict[str, int] = dict.fromkeys(FAMILIES, 12) | {"n-gram": 24}
"""The default golden of a family: two chat prompts longer than window and original context. The rounds of the first
accept all drafts, some and none, those of the second with EAGLE-3 one at first; a P-EAGLE round accepts none although a
later draft agrees, and one more than the budget leaves. Prompt lookup finds little at first."""


class PlantableFault(Protocol):
    """What a catalogue says of a fault: see `parity.device.faults.planting.Fault`; `plant` changes a
    device."""

    id: str
    family: str
    what: str
    stage: str
    chained: str
    round: int | None
    chained_round: int | None
    sites: tuple[str, ...]
    gate: str
    same_text: bool
    seen: str
    precision: str
    tp: int
    lanes: int
    drafters: tuple[str, ...]
    partial_kv: str
    kv_cache: str
    loop: str
    plant: Callable[[Device], None]


def choose_faults(
    catalogue: dict[str, PlantableFault],
    names: Sequence[str],
    family: str = "p-eagle",
    partial_kv: str = "",
    kv_cache: str = "",
) -> list[PlantableFault]:
    """The named faults; all of a family of drafters that a gate is named for where no name is given.

    Args:
        partial_kv: of the golden; with it there are the faults of partial KV alone.
        kv_cache: of the golden; with it there are the faults of quantised caches alone.

    Raises:
        UsageError: there is no such fault, or not with this family or cache.
    """
    for name in names:
        if name not in catalogue:
            raise UsageError(f"{name}: no such fault; `parity faults list` names {len(catalogue)}")
        if family not in catalogue[name].drafters:
            raise UsageError(
                f"{name} is a fault of {' and '.join(catalogue[name].drafters)}, the golden is of {family}"
            )
        if catalogue[name].partial_kv and not partial_kv:
            raise UsageError(f"{name} is a fault of partial KV, the golden has none: --partial-kv")
        if catalogue[name].kv_cache not in ("", kv_cache):
            due = catalogue[name].kv_cache
            raise UsageError(f"{name} is a fault of caches in {due}, the golden's are not: --kv-cache {due}")
    asked = bool(partial_kv), bool(kv_cache)
    here = (fault for fault in catalogue.values() if (bool(fault.partial_kv), bool(fault.kv_cache)) == asked)
    every = (fault for fault in here if fault.gate and family in fault.drafters)
    return [catalogue[name] for name in names] or list(every)


def small_golden(
    folder: Path, progress: Progress = quiet, family: Family = "p-eagle", partial_kv: str = "", kv_cache: str = ""
) -> TrustedGolden:
    """The golden that faults of a family are judged by where none is named, made in this folder.

    Where caches are quantised its checkpoints are made there too: the tiny pair's, with scales.
    """
    lines = {json.loads(line)["id"]: line for line in tiny("prompts/chat.jsonl").read_text().splitlines()}
    prompts = folder / "prompts.jsonl"
    prompts.write_text("\n".join(lines[name] for name in PROMPTS[family]) + "\n")
    target, drafter, out = tiny("target"), tiny(FAMILIES[family].checkpoint), folder / "golden"
    if kv_cache:
        target, drafter = scaled_pair(target, drafter, folder)
    made = dump_golden(
        target=target,
        drafter=drafter,
        prompts=prompts,
        max_new_tokens=TOKENS[family],
        out=out,
        progress=progress,
        partial_kv=partial_kv,
        kv_cache=kv_cache,
    )
    return trusted(made)
