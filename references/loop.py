"""The speculative loop over the two oracles: prefill, then draft, verify, accept, commit, roll back.

One sequence at a time, greedy but for where it is told to sample (`sampling`). Every stage of the design's table is
handed to the tap; the loop continues with what the tap returns. What depends on the drafter is in `parallel` for
P-EAGLE, in `chain` for EAGLE-3, in `block` for DFlash and in `draft_model` for a draft model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from parity.errors import UsageError
from parity.kv_cache import KVFormats
from parity.partial_kv import PartialKV
from parity.references.capture import Wrapped, torch_tap
from parity.references.drafter_config import FamilyConfig
from parity.references.drafter_layers import KVCache
from parity.references.fits import admit_drafts, admit_rows
from parity.references.kv_cache import QuantisedKVCache, Quantiser, quantiser
from parity.references.loop_state import Recorder, Result, State
from parity.references.partial_kv import PartialKVCache
from parity.references.points import point
from parity.references.sampling import Sampler
from parity.references.target import Target
from parity.seam import Sampling


class Drafter(Protocol):
    """What the loop needs of a drafter."""

    @property
    def config(self) -> FamilyConfig:
        """What its config.json says."""


T = TypeVar("T", bound=Target)
D = TypeVar("D", bound=Drafter)


class SpeculativeLoop(Generic[T, D]):
    """gpt-oss with a drafter.

    Args:
        target: the target's oracle.
        drafter: the drafter's oracle.
        k: K, drafts per round; or that of each round in turn, from the first one again behind the last.
        max_positions: rows that prompt, budget and K drafts have to fit; the smaller context where None.

    Attributes:
        k: K of the round under way.
        most: the largest K of a round.

    Raises:
        UsageError: K is not in 1 … the number the drafter was made for, or the models have fewer positions.
    """

    state: State
    partial: PartialKV | None = None
    """The pages of its cache that a row of the drafter attends to; None for all of them."""
    formats = KVFormats()
    """Those of the caches."""
    quantiser: Quantiser | None = None
    """What the drafter's cache makes of keys and values, where it keeps another format."""
    sampler: Sampler | None = None
    """What draws in the place of greedy choices; None for these."""

    def __init__(self, target: T, drafter: D, k: int | Sequence[int], max_positions: int | None = None):
        self.schedule: tuple[int, ...] = (k,) if isinstance(k, int) else tuple(k)
        self.k = self.most = max(self.schedule, default=0)
        admit_drafts(self.schedule, drafter.config)
        self.target, self.drafter = target, drafter
        layers = target.config.num_hidden_layers
        taps = drafter.config.tap_inputs
        self.tap_inputs: tuple[int, ...] = (2, layers // 2, layers - 3) if taps is None else taps
        self.eos = target.eos
        context = min(target.config.max_position_embeddings, drafter.config.max_positions)
        if max_positions is not None and not 1 <= max_positions <= context:
            raise UsageError(f"max_positions: {max_positions} is outside 1 to {context}, the smaller context")
        self.max_positions: int = max_positions or context
        self.begin(0, torch_tap(lambda stage, value: value))

    def run(self, prompt: Sequence[int], max_new_tokens: int, recorder: Recorder) -> Result:
        """Prefill the prompt and speculate until EOS or the budget.

        Raises:
            UsageError: prompt, budget and K rows do not fit the context.
        """
        self.admit(len(prompt), max_new_tokens)
        self.begin(max_new_tokens, torch_tap(recorder))
        recorder.begin(0)
        self.prefill(torch.tensor(prompt))
        lengths: list[int] = []
        accepted: list[int] = []
        while not self.finished():
            recorder.begin(len(lengths) + 1)
            drafts = self.propose(self.schedule[len(lengths) % len(self.schedule)])
            matched, length = self.accept(drafts, self.verify(drafts))
            self.commit(length)
            lengths.append(length)
            accepted.append(min(matched, length))
        emitted = self.state.emitted
        return Result(tuple(emitted), tuple(lengths), tuple(accepted), "eos" if emitted[-1] in self.eos else "length")

    def admit(self, length: int, max_new_tokens: int) -> None:
        """Refuse what does not fit, before any work is done."""
        sides = {
            "target": self.target.config.max_position_embeddings,
            "drafter": self.drafter.config.max_positions,
        }
        admit_rows(length, max_new_tokens, self.most, sides, self.max_positions)

    def begin(self, budget: int, tap: Wrapped) -> None:
        """Start a new sequence with empty caches."""
        self.state = State(tap, budget, cache=self.new_cache())
        self.target.reset(tap)

    @point
    def new_cache(self) -> KVCache:
        """The drafter's cache of a sequence, empty."""
        if self.quantiser is not None:
            return QuantisedKVCache(self.quantiser)
        return KVCache() if self.partial is None else PartialKVCache(self.partial, self.max_positions)

    def attend_to(self, pages: str) -> None:
        """Let the drafter's rows attend to these pages of its cache from the next sequence on.

        Raises:
            UsageError: see `PartialKV.of`.
        """
        self.partial = PartialKV.of(pages, self.drafter.config.family, self.max_positions)

    def quantise(self, formats: str, target: str | Path, drafter: str | Path) -> None:
        """Keep the caches in these formats from the next sequence on, by the scales of these checkpoints.

        Raises:
            UsageError: see `KVFormats.of` and `read_scales`.
        """
        self.formats = KVFormats.of(formats, self.drafter.config.family, "" if self.partial is None else "some")
        layers = self.target.config.num_hidden_layers, self.drafter.config.num_layers
        self.target.quantiser = quantiser(self.formats.target, Path(target), layers[0])
        self.quantiser = quantiser(self.formats.drafter, Path(drafter), layers[1])

    @property
    def scales(self) -> dict[str, dict[str, tuple[float, ...]]]:
        """Of each side that keeps another format, those of keys and values by layer."""
        sides = {"target": self.target.quantiser, "drafter": self.quantiser}
        return {side: one.scales for side, one in sides.items() if one is not None}

    def sample(self, settings: Sampling | None, uniforms: np.ndarray) -> None:
        """Sample from the next sequence on, by these numbers; greedily again where None, or at temperature 0.

        Args:
            uniforms: float32 [R, 4, n]; see `parity.seam.Samples`.
        """
        self.sampler = Sampler(settings, uniforms) if settings is not None and settings.temperature else None

    @point
    def tap(self, stage: str, value: Tensor, first: int = 0, total: int | None = None) -> Tensor:
        """Hand a stage over, or rows `first` … of its `total`; what the loop continues with."""
        if total is None or total == len(value):
            return self.state.tap(stage, value)
        return self.state.tap.rows(stage, value, first, total)

    @point
    def finished(self) -> bool:
        """Whether the sequence has come to its end."""
        return self.state.emitted[-1] in self.eos or len(self.state.emitted) >= self.state.budget

    @point
    def prefill(self, prompt: Tensor) -> None:
        """Round 0: the target over S rows, the drafter over the S-1 rows whose next token is known."""
        tokens = self.tap("target.tokens", self.prompt_tokens(self.tap("target.logits", self.target.forward(prompt))))
        self.state.length, self.state.prompt = len(prompt), prompt
        self.state.emitted = [int(tokens[-1])]
        self.prefill_drafter(prompt)
        self.state.pending_taps = self.taps(len(prompt) - 1, len(prompt))
        self.hand_over_caches()
        self.state.round = 1

    @point
    def prefill_drafter(self, prompt: Tensor) -> None:
        """The drafter over the prompt, whose tokens are one ahead of their taps."""
        raise NotImplementedError

    def propose(self, k: int) -> Tensor:
        """This round's K drafts: ids [K] of the target's vocabulary; none where K is 0."""
        self.k, self.state.proposed = k, ()
        if k:
            return self.draft()
        self.keep_up()
        return self.tap("drafter.draft_tokens", torch.empty(0, dtype=torch.long))

    @point
    def draft(self) -> Tensor:
        """K ids [K] of the target's vocabulary."""
        raise NotImplementedError

    @point
    def keep_up(self) -> None:
        """A round of K = 0: the drafter runs over what was emitted, so that its cache misses nothing."""
        raise NotImplementedError

    def skipped(self) -> bool:
        """Whether the drafter missed a round, whose taps are gone."""
        return bool(self.tap_inputs) and self.state.draft_length + len(self.state.pending_taps) != self.state.length

    @point
    def taps(self, first: int, end: int) -> Tensor:
        """The taps of rows `first` … `end` - 1 of what the target ran last [n, T*H]; [n, 0] for a drafter without."""
        return self.target.taps(self.tap_inputs)[first:end] if self.tap_inputs else torch.empty(end - first, 0)

    @point
    def greedy(self, logits: Tensor) -> Tensor:
        """The ids of the largest logits."""
        return logits.argmax(-1)

    def prompt_tokens(self, logits: Tensor) -> Tensor:
        """The greedy ids of a prompt's rows [S, V]; the last one's is drawn where it samples: [S]."""
        tokens = self.greedy(logits)
        return tokens if self.sampler is None else torch.cat((tokens[:-1], self.sampler.token(logits[-1:])))

    def drafted_columns(self, logits: Tensor, first: int) -> Tensor:
        """The columns that drafts `first` … are, of their logits [n, VD]: [n]."""
        if self.sampler is None:
            return self.greedy(logits)
        self.state.proposed = (*self.state.proposed[:first], logits)
        return self.sampler.columns(logits, self.state.round, first)

    def verified(self, drafts: Tensor, logits: Tensor) -> Tensor:
        """The tokens of the verify pass' rows [K+1, V]: greedy ids, or what the accept rule makes of the drafts."""
        if self.sampler is None:
            return self.greedy(logits)
        proposed = torch.cat(self.state.proposed)[: len(drafts)] if self.state.proposed else None
        to_target = getattr(self.drafter, "to_target", lambda columns: columns)
        return self.sampler.tokens(logits, proposed, to_target, drafts, self.state.round)

    @point
    def positions(self, committed: int, behind: int) -> Tensor:
        """The positions of a round's drafter rows [W]: the committed ones and those behind them."""
        return self.state.draft_length + torch.arange(committed + behind)

    @point
    def slots(self, committed: int, behind: int) -> Tensor:
        """The cache slots that a round's drafter rows [W] write."""
        return self.state.draft_length + torch.arange(committed + behind)

    @point
    def mask(self, slots: Tensor, committed: int) -> Tensor:
        """Which cache slots each row may attend to, bool [W, S]: causal over the whole cache."""
        return torch.arange(int(slots[0]) + len(slots)) <= slots[:, None]

    def verify(self, drafts: Tensor) -> Tensor:
        """The last emitted token and the drafts as K+1 target rows: ids [K+1]."""
        rows = torch.cat((torch.tensor(self.state.emitted[-1:]), drafts))
        logits = self.tap("verify.logits", self.target.forward(rows))
        return self.tap("verify.tokens", self.verified(drafts, logits))

    @point
    def accept(self, drafts: Tensor, tokens: Tensor) -> tuple[int, int]:
        """The drafts that equal the target's own choice, and the token behind them, cut by EOS and budget.

        Returns the number of matched drafts and the number of tokens emitted.
        """
        matched = self.matched(drafts, tokens)
        emitted = self.until_eos(self.within_budget(self.emission(drafts, tokens, matched)))
        length = int(self.tap("accept.length", torch.tensor([len(emitted)]))[0])
        if length != len(emitted):  # the tap's length decides what is emitted
            emitted = tokens[:length].tolist()
        self.state.emitted += self.tap("accept.emitted", torch.tensor(emitted)).tolist()
        return matched, length

    @point
    def matched(self, drafts: Tensor, tokens: Tensor) -> int:
        """How many drafts [K] equal the target's tokens [K+1] before the first one that does not."""
        return int((drafts == tokens[:-1]).long().cumprod(0).sum())

    @point
    def emission(self, drafts: Tensor, tokens: Tensor, matched: int) -> list[int]:
        """What a round emits before it is cut: the matched drafts, and the bonus or correction behind them."""
        ids: list[int] = tokens[: matched + 1].tolist()
        return ids

    @point
    def within_budget(self, emitted: list[int]) -> list[int]:
        """A round's ids cut at the budget."""
        return emitted[: self.state.budget - len(self.state.emitted)]

    @point
    def until_eos(self, emitted: list[int]) -> list[int]:
        """A round's ids cut behind the first EOS."""
        ends = [place for place, token in enumerate(emitted) if token in self.eos]
        return emitted[: ends[0] + 1] if ends else emitted

    @point
    def commit(self, length: int) -> None:
        """Keep the rows of what was emitted, drop the rejected ones, keep the taps the drafter is owed."""
        self.state.pending_taps = self.taps(0, length)
        self.state.length += length
        self.state.round += 1
        self.target.crop(self.state.length)
        self.state.cache.crop(self.state.draft_length)
        self.hand_over_caches()

    @point
    def hand_over_caches(self) -> None:
        """Hand over both caches' contents and lengths."""
        for layer in range(self.target.config.num_hidden_layers):
            self.target.load(layer, *self.cached(f"kv.target.{layer}", *self.target.rows(layer)))
        self.tap("kv.target.length", torch.tensor([self.target.rows(0)[0].shape[0]]))
        rows = self.state.cache.rows
        for layer in range(self.drafter.config.num_layers):
            k, v = (x[0].transpose(0, 1) for x in rows[layer])
            k, v = self.cached(f"kv.drafter.{layer}", k, v)
            rows[layer] = (k.transpose(0, 1)[None], v.transpose(0, 1)[None])
        if rows:
            self.tap("kv.drafter.length", torch.tensor([rows[0][0].shape[2]]))

    @point
    def cached(self, name: str, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """What a layer's cache holds, keys and values [S, G, D]."""
        return self.tap(f"{name}.k", k), self.tap(f"{name}.v", v)
