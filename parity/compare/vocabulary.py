"""Which token each column of the draft logits stands for: a drafter's vocabulary may be smaller than the target's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parity.compare.rows import StageRows
from parity.errors import Inconclusive
from parity.golden.views import DumpView

OFFSETS = "d2t"
"""The tensor's name on the hub: token = column + d2t[column] (an offset, not an id)."""


@dataclass(frozen=True)
class DraftVocabulary:
    """`tokens` [VD], int64: the target id of each column of the draft logits; -1 where nobody says."""

    tokens: np.ndarray
    source: str

    def columns(self, tokens: np.ndarray) -> np.ndarray:
        """The columns [R] behind target ids [R]; -1 where no column is known for one."""
        known = np.flatnonzero(self.tokens >= 0)
        by_token = dict(zip(self.tokens[known][::-1].tolist(), known[::-1].tolist(), strict=True))
        return np.array([by_token.get(token, -1) for token in tokens.tolist()], dtype=np.int64)

    @property
    def ascending(self) -> bool:
        """Whether the lowest of some columns is always the lowest of their tokens."""
        known = self.tokens[self.tokens >= 0]
        return bool((np.diff(known) > 0).all())

    @property
    def whole(self) -> bool:
        """Whether every column's token is known."""
        return bool((self.tokens >= 0).all())


def draft_vocabulary(golden: DumpView | None, scores: StageRows, chosen: StageRows) -> DraftVocabulary:
    """From the golden's manifest, else from the drafter's checkpoint, else from the golden's own rows.

    Args:
        golden: None leaves the rows alone.
        scores: rows of `drafter.logits`, of which the golden's [R, VD] are read.
        chosen: the same rows of `drafter.draft_tokens`.

    Raises:
        Inconclusive: the checkpoint's offsets cannot be read, or are of another width.
    """
    width = scores.golden.shape[1]
    told = None if golden is None else golden.manifest.model.draft_vocabulary
    if told is not None and len(told) in (0, width):
        return DraftVocabulary(np.array(told, np.int64) if told else np.arange(width), "the golden's manifest")
    path = "" if golden is None else golden.manifest.model.drafter.path
    read = _from_checkpoint(Path(path), width) if path else None
    return read or _from_rows(scores, chosen)


def _from_checkpoint(folder: Path, width: int) -> DraftVocabulary | None:
    """The offsets of a checkpoint; the identity where it has weights and no offsets."""
    from safetensors import SafetensorError, safe_open

    shards = sorted(folder.glob("*.safetensors"))
    for shard in shards:
        try:
            with safe_open(shard, framework="numpy") as file:
                if OFFSETS in set(file.keys()):
                    offsets = file.get_tensor(OFFSETS).astype(np.int64)
                    if offsets.shape != (width,):
                        raise Inconclusive(
                            f"{shard}: {OFFSETS} has {offsets.size} entries, the draft logits {width} columns"
                        )
                    return DraftVocabulary(np.arange(width) + offsets, f"{OFFSETS} of {shard.name}")
        except (SafetensorError, OSError) as error:
            raise Inconclusive(f"{shard} cannot be read ({error})") from None
    return DraftVocabulary(np.arange(width), f"a drafter without {OFFSETS}") if shards else None


def _from_rows(scores: StageRows, chosen: StageRows) -> DraftVocabulary:
    """What the golden's own rows tell; a column that never won is unknown."""
    known = np.full(scores.golden.shape[1], -1, dtype=np.int64)
    known[scores.golden.argmax(axis=1)] = chosen.golden
    return DraftVocabulary(known, "the golden's own rows")
