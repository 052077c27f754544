"""The greedy speculative loop over the two oracles: prefill, then draft, verify, accept, commit, roll back.

One sequence at a time. Every stage of the design's table is handed to the tap; what the tap returns
is what the loop goes on with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from parity.errors import UsageError
from parity.references.capture import torch_tap
from parity.references.drafter_layers import KVCache
from parity.references.eagle3 import Eagle3
from parity.references.hf_target import HFTarget
from parity.references.peagle import PEagle


class Recorder(Protocol):
    """A tap that also wants to know which round it is."""

    def begin(self, round_: int) -> None: ...

    def __call__(self, stage: str, value): ...


@dataclass(frozen=True)
class Result:
    """What came out: all emitted ids, and per verify round how many, and how many of them were drafts."""

    emitted: tuple[int, ...]
    acceptance_length: tuple[int, ...]
    accepted_drafts: tuple[int, ...]
    finish: Literal["eos", "length"]


class SpeculativeLoop:
    """gpt-oss with a P-EAGLE drafter.

    Args:
        target: the target's oracle.
        drafter: the drafter's oracle.
        k: K, drafts per round.
        max_positions: rows that prompt, budget and K drafts have to fit; the smaller context where None.

    Raises:
        UsageError: K is not in 1 … the number the drafter was made for, or the models have fewer positions.
    """

    def __init__(self, target: HFTarget, drafter: PEagle | Eagle3, k: int, max_positions: int | None = None):
        most = drafter.config.max_drafts
        if k < 1 or (most is not None and k > most):
            raise UsageError(f"-k {k}: this drafter drafts 1 to {most} tokens (num_parallel_positions of its config)")
        self.target, self.drafter, self.k = target, drafter, k
        layers = target.config.num_hidden_layers
        self.tap_inputs = drafter.config.tap_inputs or (2, layers // 2, layers - 3)
        self.eos = target.eos
        context = min(target.config.max_position_embeddings, drafter.config.max_positions)
        if max_positions is not None and not 1 <= max_positions <= context:
            raise UsageError(f"max_positions: {max_positions} is outside 1 to {context}, the smaller context")
        self.max_positions = max_positions or context

    def run(self, prompt: Sequence[int], max_new_tokens: int, recorder: Recorder) -> Result:
        """Prefill the prompt and speculate until EOS or the budget.

        Raises:
            UsageError: prompt, budget and K rows do not fit the context.
        """
        self.admit(len(prompt), max_new_tokens)
        self.budget = max_new_tokens
        self.tap = torch_tap(recorder)
        recorder.begin(0)
        self._prefill(torch.tensor(prompt))
        lengths, accepted = [], []
        while not self._finished():
            recorder.begin(len(lengths) + 1)
            drafts = self._draft()
            matched, length = self._accept(drafts, self._verify(drafts))
            self._commit(length)
            lengths.append(length)
            accepted.append(min(matched, length))
        finish = "eos" if self.emitted[-1] in self.eos else "length"
        return Result(tuple(self.emitted), tuple(lengths), tuple(accepted), finish)

    def admit(self, length: int, max_new_tokens: int) -> None:
        """Refuse what does not fit, before any work is done."""
        if length < 2:
            raise UsageError(
                f"a prompt of {length} tokens is too short: the drafter pairs each token with the one before"
            )
        if max_new_tokens < 1:
            raise UsageError(f"--max-new-tokens {max_new_tokens}: at least 1 is needed")
        need = length + max_new_tokens + self.k
        if need > self.max_positions:
            raise UsageError(
                f"a prompt of {length} tokens, {max_new_tokens} new tokens and {self.k} drafts need {need} positions; "
                f"the context has {self.max_positions} (max_position_embeddings)"
            )

    def _finished(self) -> bool:
        return self.emitted[-1] in self.eos or len(self.emitted) >= self.budget

    def _prefill(self, prompt: torch.Tensor) -> None:
        """Round 0: the target over S rows, the drafter over the S-1 rows whose next token is known."""
        self.target.reset(self.tap)
        self.cache = KVCache()
        self.length, self.draft_length = 0, 0
        logits = self.tap("target.logits", self.target.forward(prompt))
        tokens = self.tap("target.tokens", self._greedy(logits))
        self.length = len(prompt)
        self.emitted = [int(tokens[-1])]
        self._prefill_drafter(prompt)
        self.pending_taps = self._taps(len(prompt) - 1, len(prompt))
        self._caches()

    def _prefill_drafter(self, prompt: torch.Tensor) -> None:
        self._drafter_rows(prompt[1:], self._taps(0, len(prompt) - 1), masked=0)
        self.draft_length = len(prompt) - 1

    def _taps(self, first: int, end: int) -> torch.Tensor:
        """The taps of rows `first` … `end` - 1 of what the target ran last."""
        return self.target.taps(self.tap_inputs)[first:end]

    def _greedy(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.argmax(-1)

    def _draft(self) -> torch.Tensor:
        """C committed rows, re-fed with their true taps, and K-1 placeholders: K ids [K]."""
        committed = torch.tensor(self.emitted[-len(self.pending_taps) :])
        rows = self._drafter_rows(committed, self.pending_taps, masked=self.k - 1)
        self.draft_length += len(committed)
        hidden = self.tap("drafter.pre_head_hidden", self.drafter.norm(self._predicting(rows, len(committed))))
        logits = self.tap("drafter.logits", self.drafter.lm_head(hidden))
        return self.tap("drafter.draft_tokens", self.drafter.to_target(self._greedy(logits)))

    def _predicting(self, rows: torch.Tensor, committed: int) -> torch.Tensor:
        """The K rows that draft: the last committed one and the masked ones."""
        return rows[committed - 1 :]

    @torch.no_grad()
    def _drafter_rows(self, committed: torch.Tensor, taps: torch.Tensor, masked: int) -> torch.Tensor:
        """Run W rows through the drafter's trunk: the residual stream [W, H]."""
        tap = self.tap
        taps = tap("drafter.taps", taps)
        ids = tap("drafter.input_ids", self._ids(committed, masked))
        positions = tap("drafter.positions", self._positions(len(committed), masked))
        slots = tap("drafter.slots", self._slots(len(committed), masked))
        fused = tap("drafter.fc_out", self._fused(taps, masked))
        self.cache.start = int(slots[0])
        return self.drafter.trunk(
            ids[None],
            fused[None],
            positions[None],
            self._mask(slots, len(committed))[None, None],
            self.cache,
            lambda layer: lambda part, value: tap(f"drafter.layers.{layer}.{part}", value[0])[None],
        )[0]

    def _ids(self, committed: torch.Tensor, masked: int) -> torch.Tensor:
        """The committed ids [C], then a placeholder for each masked row."""
        return torch.cat((committed, committed.new_full((masked,), self.drafter.config.placeholder_id)))

    def _positions(self, committed: int, masked: int) -> torch.Tensor:
        return self.draft_length + torch.arange(committed + masked)

    def _slots(self, committed: int, masked: int) -> torch.Tensor:
        return self.draft_length + torch.arange(committed + masked)

    def _fused(self, taps: torch.Tensor, masked: int) -> torch.Tensor:
        """Taps [C, T*H] and `mask_hidden` on the masked rows, through `fc`: [W, H]."""
        return self.drafter.fuse(torch.cat((taps, self.drafter.mask_hidden[0].expand(masked, -1))))

    def _mask(self, slots: torch.Tensor, committed: int) -> torch.Tensor:
        """Which cache slots each row may attend to, bool [W, S]: causal over the whole cache."""
        return torch.arange(int(slots[0]) + len(slots)) <= slots[:, None]

    def _verify(self, drafts: torch.Tensor) -> torch.Tensor:
        """The last emitted token and the drafts as K+1 target rows: greedy ids [K+1]."""
        rows = torch.cat((torch.tensor(self.emitted[-1:]), drafts))
        logits = self.tap("verify.logits", self.target.forward(rows))
        return self.tap("verify.tokens", self._greedy(logits))

    def _accept(self, drafts: torch.Tensor, tokens: torch.Tensor) -> tuple[int, int]:
        """The drafts that equal the target's own choice, and the token behind them, cut by EOS and budget.

        Returns the number of matched drafts and the number of tokens emitted.
        """
        matched = self._matched(drafts, tokens)
        emitted = self._until_eos(self._within_budget(self._emission(drafts, tokens, matched)))
        length = int(self.tap("accept.length", torch.tensor([len(emitted)]))[0])
        if length != len(emitted):  # what is emitted follows the length that the tap goes on with
            emitted = tokens[:length].tolist()
        self.emitted += self.tap("accept.emitted", torch.tensor(emitted)).tolist()
        return matched, length

    def _matched(self, drafts: torch.Tensor, tokens: torch.Tensor) -> int:
        return int((drafts == tokens[:-1]).long().cumprod(0).sum())

    def _emission(self, drafts: torch.Tensor, tokens: torch.Tensor, matched: int) -> list[int]:
        """What a round emits before it is cut: the matched drafts, and the bonus or correction behind them."""
        return tokens[: matched + 1].tolist()

    def _within_budget(self, emitted: list[int]) -> list[int]:
        return emitted[: self.budget - len(self.emitted)]

    def _until_eos(self, emitted: list[int]) -> list[int]:
        ends = [place for place, token in enumerate(emitted) if token in self.eos]
        return emitted[: ends[0] + 1] if ends else emitted

    def _commit(self, length: int) -> None:
        """Keep the rows of what was emitted, drop the rejected ones, keep the taps the drafter is owed."""
        self.pending_taps = self._taps(0, length)
        self.length += length
        self.target.crop(self.length)
        self.cache.crop(self.draft_length)
        self._caches()

    def _caches(self) -> None:
        """Hand over both caches' contents and lengths."""
        for layer in range(self.target.config.num_hidden_layers):
            self.target.load(layer, *self._pair(f"kv.target.{layer}", *self.target.rows(layer)))
        self.tap("kv.target.length", torch.tensor([self.target.rows(0)[0].shape[0]]))
        for layer in range(self.drafter.config.num_layers):
            k, v = (x[0].transpose(0, 1) for x in self.cache.rows[layer])
            k, v = self._pair(f"kv.drafter.{layer}", k, v)
            self.cache.rows[layer] = (k.transpose(0, 1)[None], v.transpose(0, 1)[None])
        self.tap("kv.drafter.length", torch.tensor([self.cache.rows[0][0].shape[2]]))

    def _pair(self, name: str, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tap(f"{name}.k", k), self.tap(f"{name}.v", v)
