"""Faults of speculative sampling: of the accept rule, of what it knows of the drafts, and of the numbers it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from parity.device.faults.planting import ALONE, BLOCKS, EITHER, Family
from parity.device.kernels.head import greedy
from parity.device.kernels.sample import drawn, probabilities
from parity.device.pipeline import Pipeline
from parity.device.sampler import Sampler
from parity.seam import DRAWS, Sampling

fault = Family("sampling", round=None, gate="sampling", same_text=True, drafters=EITHER + ALONE + BLOCKS)


class Ruled(Sampler):
    """The published rule with its two parts apart; a match draws as ever."""

    def decided(self, p: Any, q: Any, drafts: np.ndarray, uniforms: np.ndarray) -> Any:
        """As the parent's."""
        if self.settings.rule == "match" or not drafts.shape[1]:
            return super().decided(p, q, drafts, uniforms)
        ids, own, count = self.engine.array(drafts), p[:, :-1], drafts.shape[1]
        accept, spare = (self._array(uniforms[:, DRAWS.index(what), :count]) for what in ("accept", "replace"))
        of_p, of_q = (np.take_along_axis(one, ids[..., None], axis=-1)[..., 0] for one in (own, q))
        others = np.where(self.accepts(accept, of_p, of_q, own, ids), ids, self.instead(own, q, spare))
        last = self._array(uniforms[:, DRAWS.index("target"), count : count + 1])
        return np.concatenate([others, drawn(p[:, -1:], last)], axis=1)

    def accepts(self, uniforms: Any, of_p: Any, of_q: Any, p: Any, drafts: Any) -> Any:
        """Which drafts [B, n] are accepted."""
        return uniforms * of_q < of_p

    def instead(self, p: Any, q: Any, uniforms: Any) -> Any:
        """What takes their place [B, n]."""
        return drawn(np.maximum(p - q, 0.0), uniforms)


def _make(kind: type[Sampler]) -> Any:
    def plant(pipeline: Pipeline) -> None:
        pipeline.make_sampler = kind

    return plant


class QIgnored(Ruled):
    """Accepts with probability p(d)."""

    def accepts(self, uniforms: Any, of_p: Any, of_q: Any, p: Any, drafts: Any) -> Any:
        """See above."""
        return uniforms < of_p


class RatioInverted(Ruled):
    """Accepts with probability q(d) / p(d)."""

    def accepts(self, uniforms: Any, of_p: Any, of_q: Any, p: Any, drafts: Any) -> Any:
        """See above."""
        return uniforms * of_p < of_q


class ArgmaxAccepts(Ruled):
    """Accepts what the target's greedy choice is."""

    def accepts(self, uniforms: Any, of_p: Any, of_q: Any, p: Any, drafts: Any) -> Any:
        """See above."""
        return drafts == greedy(p)


class ReplacedFromP(Ruled):
    """Draws from p in place of a rejected draft."""

    def instead(self, p: Any, q: Any, uniforms: Any) -> Any:
        """See above."""
        return drawn(p, uniforms)


class ArgmaxReturned(Ruled):
    """The likeliest token in place of a rejected draft."""

    def instead(self, p: Any, q: Any, uniforms: Any) -> Any:
        """See above."""
        return greedy(p)


class QUnprocessed(Sampler):
    """Remembers q from before the processors."""

    def remembered(self, logits: Any, q: Any) -> Any:
        """See above."""
        return probabilities(logits, Sampling())


class QNarrow(Sampler):
    """Remembers q in bfloat16."""

    def remembered(self, logits: Any, q: Any) -> Any:
        """See above."""
        return q.astype(ml_dtypes.bfloat16).astype(np.float32)


class DraftHot(Sampler):
    """Draws drafts at temperature 1, and takes them for draws at the temperature of the request."""

    def proposal(self, logits: Any) -> Any:
        """See above."""
        return probabilities(logits, replace(self.settings, temperature=1.0))

    def remembered(self, logits: Any, q: Any) -> Any:
        """See above."""
        return probabilities(logits, self.settings)


class BonusProcessed(Sampler):
    """Processors on the last row alone."""

    def processed(self, logits: Any) -> Any:
        """See above."""
        return np.concatenate(
            [probabilities(logits[:, :-1], Sampling()), probabilities(logits[:, -1:], self.settings)], axis=1
        )


class BonusRow(Sampler):
    """The last token from the row before."""

    def decided(self, p: Any, q: Any, drafts: np.ndarray, uniforms: np.ndarray) -> Any:
        """See above."""
        wrong = np.concatenate([p[:, :-1], p[:, -2:-1]], axis=1) if drafts.shape[1] else p
        return super().decided(wrong, q, drafts, uniforms)


class BonusGreedy(Sampler):
    """The likeliest token behind all accepted drafts."""

    def decided(self, p: Any, q: Any, drafts: np.ndarray, uniforms: np.ndarray) -> Any:
        """See above."""
        likeliest = np.arange(p.shape[-1]) == np.asarray(greedy(p[:, -1:]))[..., None]
        sure = np.concatenate([p[:, :-1], likeliest.astype(np.float32)], axis=1) if drafts.shape[1] else p
        return super().decided(sure, q, drafts, uniforms)


class NumbersReused(Sampler):
    """The first row's numbers in every row."""

    def uniform(self, what: str, first: int, count: int) -> np.ndarray:
        """See above."""
        return np.repeat(super().uniform(what, 0, 1), count, axis=1)

    def decided(self, p: Any, q: Any, drafts: np.ndarray, uniforms: np.ndarray) -> Any:
        """See above."""
        return super().decided(p, q, drafts, np.repeat(uniforms[:, :, :1], uniforms.shape[2], axis=2))


PLANTED: tuple[tuple[str, type[Sampler], str, str], ...] = (
    ("sample-q-ignored", QIgnored, "a draft accepted with probability p, whatever q is", "SafeAILab/EAGLE #329"),
    (
        "sample-q-unprocessed",
        QUnprocessed,
        "q from before the processors that drafts were drawn behind",
        "transformers #47932",
    ),
    (
        "sample-replaced-from-p",
        ReplacedFromP,
        "a rejected draft replaced by a draw from p, not from what q leaves of it",
        "SafeAILab/EAGLE #329",
    ),
    (
        "sample-argmax-returned",
        ArgmaxReturned,
        "the likeliest token in place of a rejected draft",
        "class of SGLang #39253",
    ),
    (
        "sample-argmax-accepts",
        ArgmaxAccepts,
        "a draft accepted where it is the target's likeliest token",
        "mlxcel #902",
    ),
    ("sample-ratio-inverted", RatioInverted, "a draft accepted with probability q / p", "ports of the rule"),
    ("sample-numbers-reused", NumbersReused, "one random number for all rows of a round", "keys that are not split"),
    ("sample-bonus-row", BonusRow, "the token behind all accepted drafts drawn from the row before", "off by one"),
    (
        "sample-bonus-greedy",
        BonusGreedy,
        "the likeliest token behind all accepted drafts, whatever the number",
        "class of SGLang #39253",
    ),
    (
        "sample-bonus-processed",
        BonusProcessed,
        "temperature, top-k, top-p and min-p on the last row alone",
        "class of vLLM #10198",
    ),
    (
        "sample-draft-temperature",
        DraftHot,
        "drafts drawn at temperature 1, their q taken at the request's",
        "class of z-lab/dflash #74",
    ),
    ("sample-q-bfloat16", QNarrow, "q kept in bfloat16", "class of DeepSpec #31"),
)
for _id, _kind, _what, _seen in PLANTED:
    fault(_id, _what, seen=_seen)(_make(_kind))
