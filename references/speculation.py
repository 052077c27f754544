"""The verbs of greedy speculation over the two oracles: prefill, draft, verify, commit.

One sequence at a time. Every stage of the design's table is handed to the tap; what the tap returns
is what the verb goes on with. A verb that raises leaves the state it found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from parity.errors import UsageError
from references.capture import TorchTap
from references.hf_target import HFTarget
from references.peagle import KVCache, PEagle


@dataclass(frozen=True)
class Progress:
    """Where a sequence stands, caches apart.

    Args:
        emitted: all ids so far, the first of prefill included.
        budget: how many may be emitted.
        length, draft_length: committed rows of the target's and of the drafter's cache.
        taps: [C, T*H] of the tokens that the next draft feeds as committed rows.
        verified: [n+1, T*H] of this round's verify, None before it.
        drafted: whether this round drafted.
    """

    emitted: tuple[int, ...]
    budget: int
    length: int
    draft_length: int
    taps: torch.Tensor
    verified: torch.Tensor | None = None
    drafted: bool = False


class Speculation:
    """gpt-oss with a P-EAGLE drafter.

    Args:
        target: the target's oracle.
        drafter: the drafter's oracle.
        k: K, drafts per round.
        max_positions: rows that prompt, budget and K drafts have to fit; the smaller context where None.

    Raises:
        UsageError: K is not in 1 … the number the drafter was made for, or the models have fewer positions.
    """

    def __init__(self, target: HFTarget, drafter: PEagle, k: int, max_positions: int | None = None):
        most = drafter.config.max_drafts
        if k < 1 or (most is not None and k > most):
            raise UsageError(f"-k {k}: this drafter drafts 1 to {most} tokens (num_parallel_positions of its config)")
        self.target, self.drafter, self.k = target, drafter, k
        layers = target.config.num_hidden_layers
        self.tap_inputs = drafter.config.tap_inputs or (2, layers // 2, layers - 3)
        self.eos = _eos(target)
        context = min(target.config.max_position_embeddings, drafter.config.max_positions)
        if max_positions is not None and not 1 <= max_positions <= context:
            raise UsageError(f"max_positions: {max_positions} is outside 1 to {context}, the smaller context")
        self.max_positions = max_positions or context
        self.cache = KVCache()
        self.now: Progress | None = None

    @property
    def finished(self) -> bool:
        """Whether the last token is an end token or the budget is spent."""
        return self.now.emitted[-1] in self.eos or len(self.now.emitted) >= self.now.budget

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

    @torch.no_grad()
    def prefill(self, prompt: Sequence[int], max_new_tokens: int, tap: TorchTap) -> int:
        """Round 0: the target over S rows, the drafter over the S-1 rows whose next token is known.

        Raises:
            UsageError: prompt, budget and K rows do not fit the context.
        """
        self.admit(len(prompt), max_new_tokens)
        ids = torch.tensor(prompt)
        with self._whole():
            self.target.reset(tap)
            self.cache = KVCache()
            logits = tap("target.logits", self.target.forward(ids))
            tokens = tap("target.tokens", logits.argmax(-1))
            streams = self.target.taps(self.tap_inputs)
            self._drafter_rows(ids[1:], streams[:-1], 0, 0, tap)
            first = int(tokens[-1])
            self.now = Progress((first,), max_new_tokens, len(ids), len(ids) - 1, streams[-1:])
            self._caches(tap)
        return first

    @torch.no_grad()
    def draft(self, tap: TorchTap) -> torch.Tensor:
        """C committed rows, re-fed with their true taps, and K-1 placeholders: K ids [K]."""
        self._refuse_finished()
        count = len(self.now.taps)
        if self.now.draft_length + count != self.now.length:
            raise UsageError("the drafter skipped a round: only verify and commit, or a new prefill, can follow")
        with self._whole():
            committed = torch.tensor(self.now.emitted[-count:])
            rows = self._drafter_rows(committed, self.now.taps, self.now.draft_length, self.k - 1, tap)
            hidden = tap("drafter.pre_head_hidden", self.drafter.norm(rows[count - 1 :]))
            logits = tap("drafter.logits", self.drafter.lm_head(hidden))
            drafts = tap("drafter.draft_tokens", self.drafter.to_target(logits.argmax(-1)))
            self.now = replace(self.now, drafted=True)
        return drafts

    @torch.no_grad()
    def verify(self, drafts: torch.Tensor, tap: TorchTap) -> torch.Tensor:
        """The last emitted token and n <= K drafts as n+1 target rows: greedy ids [n+1]."""
        self._refuse_finished()
        if len(drafts) > self.k:
            raise UsageError(f"{len(drafts)} drafts are more than K = {self.k}")
        with self._whole():
            self.target.watch(tap)
            self.target.crop(self.now.length)
            rows = torch.cat((torch.tensor(self.now.emitted[-1:]), drafts))
            logits = tap("verify.logits", self.target.forward(rows))
            self.now = replace(self.now, verified=self.target.taps(self.tap_inputs))
            return tap("verify.tokens", logits.argmax(-1))

    @torch.no_grad()
    def commit(self, drafts: torch.Tensor, tokens: torch.Tensor, tap: TorchTap) -> torch.Tensor:
        """Keep the rows of what is emitted, drop the rejected ones, keep the taps the drafter is owed: the ids [M]."""
        self._refuse_finished()
        if self.now.verified is None or len(self.now.verified) != len(tokens) or len(drafts) != len(tokens) - 1:
            raise UsageError("commit takes the drafts and tokens of this round's verify")
        with self._whole():
            length, emitted = self._accept(drafts, tokens, tap)
            before, kept = self.now.length, self.now
            self.now = Progress(
                emitted=(*kept.emitted, *emitted.tolist()),
                budget=kept.budget,
                length=before + length,
                draft_length=before if kept.drafted else kept.draft_length,
                taps=kept.verified[:length],
            )
            self.target.watch(tap)
            self.target.crop(self.now.length)
            self.cache.crop(self.now.draft_length)
            self._caches(tap)
        return emitted

    def poison(self, value: float) -> None:
        """Put `value` into every cached row behind the lengths."""
        for layer in range(self.target.config.num_hidden_layers):
            rows = (x.clone() for x in self.target.rows(layer))
            self.target.load(layer, *(x.index_fill(0, torch.arange(self.now.length, len(x)), value) for x in rows))
        behind = slice(self.now.draft_length, None)
        self.cache.rows = {layer: tuple(x.clone() for x in pair) for layer, pair in self.cache.rows.items()}
        for x in (x for pair in self.cache.rows.values() for x in pair):
            x[:, :, behind] = value

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """All of a verb or nothing of it: an error puts back what the verb found."""
        put_back, cache, rows, now = self.target.keep(), self.cache, dict(self.cache.rows), self.now
        try:
            yield
        except BaseException:
            put_back()
            self.cache, self.cache.rows, self.now = cache, rows, now
            raise

    def _accept(self, drafts: torch.Tensor, tokens: torch.Tensor, tap: TorchTap) -> tuple[int, torch.Tensor]:
        """The drafts that equal the target's own choice, and the token behind them, cut by EOS and budget."""
        left = self.now.budget - len(self.now.emitted)
        emitted = tokens[: matching(drafts, tokens) + 1].tolist()[:left]
        ends = [place for place, token in enumerate(emitted) if token in self.eos]
        emitted = emitted[: ends[0] + 1] if ends else emitted
        length = int(tap("accept.length", torch.tensor([len(emitted)]))[0])
        return length, tap("accept.emitted", torch.tensor(emitted))

    def _drafter_rows(
        self, committed: torch.Tensor, taps: torch.Tensor, start: int, masked: int, tap: TorchTap
    ) -> torch.Tensor:
        """Run W rows from slot `start` on through the drafter's trunk: the residual stream [W, H]."""
        drafter = self.drafter
        taps = tap("drafter.taps", taps)
        placeholders = committed.new_full((masked,), drafter.config.placeholder_id)
        ids = tap("drafter.input_ids", torch.cat((committed, placeholders)))
        positions = tap("drafter.positions", start + torch.arange(len(ids)))
        slots = tap("drafter.slots", start + torch.arange(len(ids)))
        unknown = drafter.mask_hidden[0].expand(masked, -1)
        fused = tap("drafter.fc_out", drafter.fuse(torch.cat((taps, unknown))))
        self.cache.start = int(slots[0])
        mask = torch.arange(start + len(ids)) <= positions[:, None]
        return drafter.trunk(
            ids[None],
            fused[None],
            positions[None],
            mask[None, None],
            self.cache,
            lambda layer: lambda part, value: tap(f"drafter.layers.{layer}.{part}", value[0])[None],
        )[0]

    def _caches(self, tap: TorchTap) -> None:
        """Hand over both caches' contents and lengths."""
        for layer in range(self.target.config.num_hidden_layers):
            k, v = self.target.rows(layer)
            self.target.load(layer, tap(f"kv.target.{layer}.k", k), tap(f"kv.target.{layer}.v", v))
        tap("kv.target.length", torch.tensor([self.target.rows(0)[0].shape[0]]))
        for layer in range(self.drafter.config.num_layers):
            k, v = (x[0].transpose(0, 1) for x in self.cache.rows[layer])
            k, v = tap(f"kv.drafter.{layer}.k", k), tap(f"kv.drafter.{layer}.v", v)
            self.cache.rows[layer] = (k.transpose(0, 1)[None], v.transpose(0, 1)[None])
        tap("kv.drafter.length", torch.tensor([self.cache.rows[0][0].shape[2]]))

    def _refuse_finished(self) -> None:
        if self.now is None:
            raise UsageError("there is no sequence: prefill comes first")
        if self.finished:
            raise UsageError("the sequence has ended: only a new prefill can follow")


def matching(drafts: torch.Tensor, tokens: torch.Tensor) -> int:
    """How many drafts [n] equal the target's tokens [n+1] before the first that does not."""
    return int((drafts == tokens[:-1]).long().cumprod(0).sum())


def _eos(target: HFTarget) -> tuple[int, ...]:
    """generation_config.json decides, else config.json; an int or a list."""
    found = target.model.generation_config.eos_token_id
    found = target.config.eos_token_id if found is None else found
    return (found,) if isinstance(found, int) else tuple(found or ())
