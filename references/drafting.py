"""Which drafter a checkpoint holds, and the loop that goes with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from parity.errors import UsageError
from parity.families import Family
from parity.references.block import BlockLoop
from parity.references.chain import ChainLoop
from parity.references.checkpoint import read_config
from parity.references.dflash import DFlash
from parity.references.dflash_config import ARCHITECTURE as BLOCK_DIFFUSION
from parity.references.dflash_config import DFlashConfig
from parity.references.draft_model import DraftModel, DraftModelLoop
from parity.references.drafter_config import DrafterConfig, DraftModelConfig, Eagle3Config, FamilyConfig, PEagleConfig
from parity.references.drafter_formats import KNOWN, placeholder, read_drafter
from parity.references.eagle3 import Eagle3
from parity.references.hf_target import HFTarget
from parity.references.loop import SpeculativeLoop
from parity.references.ngram import ARCHITECTURE, NGram, NGramConfig, NGramLoop
from parity.references.parallel import ParallelLoop
from parity.references.peagle import PEagle
from parity.references.target import Target

EAGLES = (
    *("draft_vocab_size", "target_hidden_size", "norm_before_residual"),
    *("eagle_config", "eagle_aux_hidden_state_layer_ids"),
)
"""Keys that only drafters on taps have; the first of them carry Llama's own name."""


@dataclass(frozen=True)
class Drafting:
    """What a family has on this side.

    Args:
        source: what a golden's producer calls it.
        config: reads its config.json.
        load: its drafter, out of a checkpoint and the loaded target.
        loop: the loop over target and drafter.
    """

    source: str
    config: type[DrafterConfig | NGramConfig]
    load: Callable[[str | Path, torch.dtype, Target], Any]
    loop: Callable[..., SpeculativeLoop[Any, Any]]


FAMILIES: dict[Family, Drafting] = {
    "p-eagle": Drafting(
        "peagle", PEagleConfig, lambda checkpoint, dtype, target: PEagle.load(checkpoint, dtype), ParallelLoop
    ),
    "eagle-3": Drafting(
        "eagle3",
        Eagle3Config,
        lambda checkpoint, dtype, target: Eagle3.load(checkpoint, dtype, target.embeddings),
        ChainLoop,
    ),
    "draft-model": Drafting(
        "draft_model",
        DraftModelConfig,
        lambda checkpoint, dtype, target: DraftModel.load(checkpoint, dtype),
        DraftModelLoop,
    ),
    "dflash": Drafting(
        "dflash",
        DFlashConfig,
        lambda checkpoint, dtype, target: DFlash.load(checkpoint, target.embeddings, target.head, dtype),
        BlockLoop,
    ),
    "n-gram": Drafting("ngram", NGramConfig, lambda checkpoint, dtype, target: NGram.load(checkpoint), NGramLoop),
}


NAMED: dict[str, Family] = {ARCHITECTURE: "n-gram", BLOCK_DIFFUSION: "dflash"}
"""Families with an architecture of their own."""


def family(drafter: str | Path) -> Family:
    """The family of a checkpoint's drafter, as a golden's manifest has it.

    A Llama without any key of EAGLE's is a draft model. P-EAGLE and EAGLE-3 share names and most keys: the placeholder
    token is P-EAGLE's alone, and EAGLE-3 has one layer.
    """
    raw = read_config(Path(drafter), *KNOWN, ARCHITECTURE, BLOCK_DIFFUSION)
    for architecture, named in NAMED.items():
        if architecture in raw["architectures"]:
            return named
    ordinary = "LlamaForCausalLM" in raw["architectures"] and not any(key in raw for key in EAGLES)
    if ordinary and placeholder(raw) is None:
        return "draft-model"
    raw = read_drafter(Path(drafter))
    return "eagle-3" if placeholder(raw) is None and raw.get("num_hidden_layers") == 1 else "p-eagle"


def refuse_family(drafter: str | Path, by: str, has: Sequence[Family]) -> None:
    """Raises:
    UsageError: the drafter is of a family that another implementation is not asked for here.
    """
    if (named := family(drafter)) not in has:
        raise UsageError(f"{drafter} is a {named} drafter: --reference {by} is for {' and '.join(has)}")


def is_chain(drafter: str | Path) -> bool:
    """Whether a drafter is EAGLE-3."""
    return family(drafter) == "eagle-3"


def drafting(drafter: str | Path) -> Drafting:
    """What the family of a checkpoint's drafter has."""
    return FAMILIES[family(drafter)]


def drafter_config(drafter: str | Path) -> FamilyConfig:
    """The config of any kind."""
    return drafting(drafter).config.read(drafter)


def load_loop(
    target: str | Path,
    drafter: str | Path,
    dtype: torch.dtype,
    k: int | Sequence[int],
    max_positions: int | None = None,
    oracle: Callable[[str | Path, torch.dtype], Target] = HFTarget,
    partial_kv: str = "",
    load: Callable[[str | Path, torch.dtype, Target], Any] | None = None,
    kv_cache: str = "",
) -> SpeculativeLoop[Any, Any]:
    """The speculative loop over a pair of checkpoints, of the family that the drafter's config tells.

    Args:
        k: drafts a round; or those of each round in turn, from the first one again behind the last.
        oracle: loads the target: `HFTarget`, or what has its methods.
        partial_kv: the pages of its cache that a row of the drafter attends to; see `parity.partial_kv`.
        load: loads the drafter; as its family does where None.
        kv_cache: the formats of the caches; see `parity.kv_cache`.

    Raises:
        UsageError: a checkpoint or K does not fit.
    """
    own, loaded = drafting(drafter), oracle(target, dtype)
    made: Any = (load or own.load)(drafter, dtype, loaded)
    vocabulary = loaded.config.vocab_size
    own_vocabulary = getattr(made.config, "vocab_size", vocabulary)
    if own_vocabulary != vocabulary:
        raise UsageError(f"{drafter} has a vocabulary of {own_vocabulary}, the target one of {vocabulary}")
    loop = own.loop(loaded, made, k, max_positions)
    loop.attend_to(partial_kv)
    loop.quantise(kv_cache, target, drafter)
    return loop
