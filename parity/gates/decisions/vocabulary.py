"""Which target token each column of the draft logits stands for, as the drafter's checkpoint says it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parity.compare.rows import stage_rows
from parity.errors import Inconclusive
from parity.golden.store import Dump

OFFSETS = "d2t"
"""The tensor's name on the hub: token = column + d2t[column] (an offset, not an id)."""


@dataclass(frozen=True)
class Vocabulary:
    """`tokens` [VD], int64: the target id of each column of the draft logits; -1 where nobody says."""

    tokens: np.ndarray
    source: str

    def columns(self, tokens: np.ndarray) -> np.ndarray:
        """The columns behind target ids [R]; -1 where no column stands for one."""
        known = np.flatnonzero(self.tokens >= 0)
        by_token = dict(zip(self.tokens[known][::-1].tolist(), known[::-1].tolist(), strict=True))
        return np.array([by_token.get(token, -1) for token in tokens.tolist()], dtype=np.int64)

    @property
    def ascending(self) -> bool:
        """Whether the lowest of some columns is always the lowest of their tokens."""
        known = self.tokens[self.tokens >= 0]
        return bool((np.diff(known) > 0).all())


def draft_vocabulary(golden: Dump) -> Vocabulary:
    """From the drafter's checkpoint; from the golden's own rows where the checkpoint is not here.

    Raises:
        Inconclusive: the golden holds no draft logits, or its draft tokens are not what the checkpoint says.
    """
    names = golden.declared
    if not {"drafter.logits", "drafter.draft_tokens"} <= set(golden.manifest.stages):
        raise Inconclusive(f"{golden.folder} lacks drafter.logits or drafter.draft_tokens: nothing maps draft columns")
    scores, chosen = (
        stage_rows(golden, golden, names[name], device="float32", mode="chained")
        for name in ("drafter.logits", "drafter.draft_tokens")
    )
    if scores is None or chosen is None:
        raise Inconclusive(f"{golden.folder} has no round: nothing maps draft columns to tokens")
    columns, tokens, width = scores.golden.argmax(axis=1), chosen.golden, scores.golden.shape[1]
    found = _from_checkpoint(Path(golden.manifest.model.drafter.path), width) or _from_rows(columns, tokens, width)
    wrong = np.flatnonzero(found.tokens[columns] != tokens)
    if len(wrong):
        column, token = columns[wrong[0]], tokens[wrong[0]]
        raise Inconclusive(
            f"the golden drafts token {token} from column {column}, {found.source} says {found.tokens[column]}: "
            "which of them is right is not for this gate to say"
        )
    return found


def _from_checkpoint(folder: Path, width: int) -> Vocabulary | None:
    """The offsets of a checkpoint; the identity where it has weights and no offsets."""
    from safetensors import SafetensorError, safe_open

    shards = sorted(folder.glob("*.safetensors"))
    for shard in shards:
        try:
            with safe_open(shard, framework="numpy") as file:
                if OFFSETS in file.keys():
                    offsets = file.get_tensor(OFFSETS).astype(np.int64)
                    if offsets.shape != (width,):
                        raise Inconclusive(
                            f"{shard}: {OFFSETS} has {offsets.size} entries, the draft logits {width} columns"
                        )
                    return Vocabulary(np.arange(width) + offsets, f"{OFFSETS} of {shard.name}")
        except (SafetensorError, OSError) as error:
            raise Inconclusive(f"{shard} cannot be read ({error})") from None
    return Vocabulary(np.arange(width), f"a drafter without {OFFSETS}") if shards else None


def _from_rows(columns: np.ndarray, tokens: np.ndarray, width: int) -> Vocabulary:
    """What the golden's own rows tell; a column that never won is unknown."""
    known = np.full(width, -1, dtype=np.int64)
    known[columns] = tokens
    return Vocabulary(known, "the golden's own rows")
