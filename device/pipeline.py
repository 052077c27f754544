"""Speculative decoding on an engine: the five verbs of `parity.seam.Device`, and two host loops."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache, lru_cache, reduce
from importlib.metadata import version
from itertools import islice
from typing import Any

import numpy as np

from parity.device.ahead import Standing, rounds_ahead
from parity.device.config import MOE
from parity.device.constants import constants
from parity.device.decoding import Generation, generate
from parity.device.drafter import Drafter
from parity.device.engines import AnyEngine, widest
from parity.device.kernels.accept import emitted_length
from parity.device.ngram import NGram
from parity.device.recorder import Recorder
from parity.device.rows import PROMPT_BUCKET, pad_rows, round_up
from parity.device.sampler import Proposed, Sampler
from parity.device.target import Target
from parity.errors import UsageError
from parity.kv_cache import KVFormats
from parity.seam import Description, Sampling, Tap


class Pipeline:
    """Target and drafter with one sequence in their caches.

    Args:
        k: K, drafts of a round at the most.
        limit: what the rows of its caches come from, in words.
    """

    prompt_bucket = PROMPT_BUCKET
    make_sampler: type[Sampler] = Sampler
    samples = True
    prefill_rows: int | None = None
    """Rows of a prefill that run at a time; all of them where None."""
    chunk: int | None = None
    """Passes are as wide as those of the asynchronous loop that reads so many rounds together; no wider than they have
    to be where None. What differs is the order of sums over keys."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | NGram,
        k: int,
        engine: AnyEngine,
        precision: str,
        limit: str = "the option max_positions",
    ) -> None:
        self.target, self.k, self.limit = target, k, limit
        self.drafter: Any = drafter  # each family's own
        self._engine, self._precision = engine, precision
        self._ends = engine.array(np.array(target.config.eos, np.int32))
        self._text = self._emitted = np.empty(0, np.int64)  # all ids, and those of the last round
        self._taps: tuple[Any, int] = (None, 0)  # of the committed rows' target pass, and the row of the first one
        self._verified: tuple[Any] | None = None  # taps of this round's verify, committed or not
        self._left = 0
        self._began = Standing((0,), (0,))  # behind the prefill
        self._came: list[int] = []  # tokens of each round since then
        self._drafted: np.ndarray | None = None  # in this round
        self.sampler: Sampler | None = None
        self._saved: dict[str, Any] = {}  # sequences that were taken off, by name

    @property
    def engine(self) -> AnyEngine:
        """The machine that it runs on."""
        return self._engine

    def lane(self, engine: AnyEngine) -> Pipeline:
        """Another pipeline on the same weights, without a sequence, on an engine of one lane."""
        mine = copy(self)
        mine._saved = {}
        mine._engine, mine.target, mine.drafter = engine, self.target.lane(engine), self.drafter.lane(engine)
        return mine

    def describe(self) -> Description:
        """What this device is."""
        moe = self.target.config.moe
        return Description(
            name=self._engine.NAME + ("" if moe == MOE[0] else f", moe {moe}"),
            precision=self._precision,
            num_layers=self.target.config.layers,
            num_drafter_layers=self.drafter.config.layers,
            k=self.k,
            max_positions=self.target.positions,
            eos=self.target.config.eos,
            versions=_versions() | getattr(self._engine, "versions", {}),
            notes=getattr(self._engine, "notes", dict)(),
            modules=_modules(len(sys.modules), next(reversed(sys.modules))),
            constants=constants(self.target, self.drafter),
            family=self.drafter.family,
            partial_kv=str(self.drafter.config.partial or ""),
            kv_cache=str(KVFormats(self.target.config.kv_format, self.drafter.config.kv_format)),
            varies_k=True,
            samples=self.samples,
        )

    @property
    def left(self) -> int:
        """Tokens that may still come out."""
        return 0 if self.finished else self._left

    @property
    def last(self) -> int:
        """The last token that came out."""
        return int(self._emitted[-1])

    @property
    def taps(self) -> tuple[Any, int]:
        """Of the committed rows' target pass, and the row of the first one."""
        return self._taps

    @property
    def ends(self) -> Any:
        """The end tokens, int32 [n]."""
        return self._ends

    @property
    def finished(self) -> bool:
        """Whether the last token is an end token or the budget is spent."""
        return self._left <= 0 or int(self._emitted[-1]) in self.target.config.eos

    def prefill(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap | None = None) -> int:
        """Round 0: S target rows, S-1 rows of a drafter on taps or S of another; the first token."""
        prompt = self._admit(prompt_ids, max_new_tokens)
        record = Recorder(tap, self._engine)
        with self.whole():
            self._begin(0)
            self.target.clear()
            self.drafter.clear()
            first = self._start(prompt, max_new_tokens, record, self._prefill_drafter)
            self._record_caches(record)
            self._begin(1)
        return first

    def prefill_from(self, cached: int, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap | None = None) -> int:
        """The prefill of a prompt whose first `cached` ids have rows in the caches, and are not run over again.

        The last of them is: the drafter needs its taps.
        """
        prompt = self._admit(prompt_ids, max_new_tokens)
        if not 0 <= cached < len(prompt) or cached > self.target.length:
            raise UsageError(f"cached: {cached} rows of a prompt of {len(prompt)}; {self.target.length} are committed.")
        if not np.array_equal(prompt[:cached], self._text[:cached]):
            raise UsageError("prompt_ids: the caches hold another beginning.")
        record = Recorder(tap, self._engine)
        with self.whole():
            rows = min(max(cached - 1, 0), self.drafter.length if self.drafter.caches else cached)
            self._begin(0)
            self.target.rollback(rows)
            self.drafter.rollback(rows)
            first = self._start(prompt, max_new_tokens, record, self._prefill_drafter)
            self._record_caches(record)
            self._begin(1)
        return first

    def save(self, name: str) -> None:
        """Keep the sequence under this name, on the host."""
        round_ = 0 if self.sampler is None else self.sampler.proposed.round
        loop = self._text, self._emitted, self._taps, self._left, round_
        self._saved[name] = loop, self.target.off_load(), self.drafter.off_load()

    def restore(self, name: str) -> None:
        """Put that sequence back.

        Raises:
            UsageError: there is none of this name.
        """
        if name not in self._saved:
            raise UsageError(f"restore: no sequence was saved as {name!r}.")
        loop, target, drafter = self._saved[name]
        self._text, self._emitted, self._taps, self._left, round_ = loop
        self._begin(round_)
        self._verified = self._drafted = None
        self.target.load(target)
        self.drafter.load(drafter)

    def draft(self, tap: Tap | None = None, k: int | None = None) -> np.ndarray:
        """C committed rows, the tokens that the drafter has to run over, and what it drafts behind them; K ids.

        Args:
            k: drafts of this round, 0 to K; with none it runs over the committed rows alone.
        """
        self._refuse_finished()
        k = self.k if k is None else k
        if not 0 <= k <= self.k:
            raise UsageError(f"draft: {k} drafts are asked for, this pipeline drafts 0 to {self.k} in a round.")
        committed = self.drafter.due(self._text, self._emitted)
        self._refuse_skipped(len(committed))
        if self.sampler is not None:
            self._begin(self.sampler.proposed.round)
        self._widen(self.k)
        self._drafted = self.drafter.draft(*self._taps, committed, k, Recorder(tap, self._engine))
        return self._drafted.copy()

    def verify(self, draft_tokens: np.ndarray, tap: Tap | None = None) -> np.ndarray:
        """The last emitted token and up to K drafts through the target; one greedy id a row."""
        self._refuse_finished()
        ids = np.concatenate([self._emitted[-1:], self._drafts(draft_tokens)])
        tokens, taps = self._target_pass(ids, len(ids), "verify", Recorder(tap, self._engine))
        self._verified = (taps,)
        return tokens

    def commit(self, draft_tokens: np.ndarray, verify_tokens: np.ndarray, tap: Tap | None = None) -> np.ndarray:
        """Emit the agreeing drafts and one token more, keep their rows, clear the rejected ones."""
        self._refuse_finished()
        if self._verified is None:
            raise UsageError("commit takes the tokens of this round's verify: verify comes first.")
        drafts = self._drafts(draft_tokens)
        verified = self._ids(verify_tokens, len(drafts) + 1)
        with self.whole():
            self._accept(drafts, verified, Recorder(tap, self._engine))
            if self.sampler is not None:
                self._begin(self.sampler.proposed.round + 1)
        return self._emitted.copy()

    def sample(self, settings: Sampling | None, uniforms: np.ndarray) -> None:
        """Sample by these numbers from the next prefill on; greedily again where None."""
        greedy = settings is None or not settings.temperature
        self.sampler = None if greedy or settings is None else self.make_sampler(settings, uniforms, self._engine)
        self.target.sampler = self.drafter.sampler = self.sampler

    def decide(
        self,
        settings: Sampling,
        target_logits: np.ndarray,
        draft_logits: np.ndarray,
        drafts: np.ndarray,
        uniforms: np.ndarray,
    ) -> np.ndarray:
        """What the accept rule makes of B rounds."""
        sampler = self.make_sampler(settings, uniforms, self._engine)
        return sampler.decide(target_logits, draft_logits, drafts, uniforms)

    def poison(self, value: float) -> None:
        """Overwrite every cache row that holds no committed row."""
        self.target.poison(value)
        self.drafter.poison(value)

    def synchronize(self) -> None:
        """Wait until every program that was sent has written its caches."""
        if (wait := getattr(self._engine, "wait", None)) is not None:
            wait([one for model in (self.target, self.drafter) for pair in model.caches for one in pair])

    def show_caches(self, tap: Tap) -> None:
        """Hand every cache's committed rows over, and the lengths."""
        self._record_caches(Recorder(tap, self._engine))

    def generate(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap | None = None) -> Generation:
        """Prefill and rounds until an end token or the budget."""
        return generate(self, prompt_ids, max_new_tokens, tap)

    def decode_plain(self, prompt_ids: Sequence[int], max_new_tokens: int) -> list[int]:
        """Greedy decoding by the target alone, one row a step; no stage is shown."""
        if self.sampler is not None:
            raise UsageError("plain decoding is greedy, and this pipeline samples.")
        unwatched = Recorder(None, self._engine)
        tokens = [self.begin_plain(prompt_ids, max_new_tokens)]
        while not self.finished:
            self._widen(0)
            self._emitted, _ = self._target_pass(self._emitted[-1:], 1, "verify", unwatched)
            self.target.length += 1
            self._left -= 1
            self._came.append(1)
            tokens.append(self.last)
        return tokens

    def begin_plain(self, prompt_ids: Sequence[int], max_new_tokens: int) -> int:
        """The prefill of plain decoding: the target alone; the first token."""
        prompt = self._admit(prompt_ids, max_new_tokens)
        self.target.clear()
        return self._start(prompt, max_new_tokens, Recorder(None, self._engine))

    @contextmanager
    def whole(self) -> Iterator[None]:
        """All of a verb or nothing of it: an error puts back what the verb found.

        Passes write in place behind the lengths only, and `clear` and `rollback` make new caches: the old ones,
        kept by reference, still hold every committed row.
        """
        both: tuple[Target, Drafter | NGram] = (self.target, self.drafter)
        models = [(model, {name: getattr(model, name) for name in model.state}) for model in both]
        proposed = self.sampler.proposed if self.sampler is not None else None
        kept = self._text, self._emitted, self._taps, self._verified, self._left, self._drafted
        try:
            yield
        except BaseException:
            for model, state in models:
                vars(model).update(state)
            self._text, self._emitted, self._taps, self._verified, self._left, self._drafted = kept
            if self.sampler is not None and proposed is not None:
                self.sampler.proposed = proposed
            raise

    def accepted(self, drafts: np.ndarray, verified: np.ndarray) -> int:
        """Tokens of verified [n+1] to emit: those that drafts [n] foresaw and one more, up to an end and the budget."""
        array = self._engine.array
        length = emitted_length(array(drafts[None]), array(verified[None]), self._ends, array(np.array([self._left])))
        return int(self._engine.host(length)[0])

    def _accept(self, drafts: np.ndarray, verified: np.ndarray, record: Recorder) -> None:
        """Emit, keep the rows of what was emitted, clear the rejected ones."""
        before = self.target.length
        length = int(record.exact("accept", "length", np.array([self.accepted(drafts, verified)]))[0])
        self._emitted = record.exact("accept", "emitted", verified[:length])
        self._text = np.concatenate([self._text, self._emitted])
        self._left -= length
        self._came.append(length)
        self._taps, self._verified = (*(self._verified or (None,)), 0), None
        self.target.rollback(before + length)
        drafted, cached = self._drafted, self.drafter.length
        self.drafter.rollback(cached if drafted is None else self.drafter.kept(before, drafted, self._emitted))
        self._drafted = None
        self._record_caches(record)

    def _start(
        self,
        prompt: np.ndarray,
        budget: int,
        record: Recorder,
        behind: Callable[[np.ndarray, int, Any, Recorder], None] = lambda prompt, start, taps, record: None,
    ) -> int:
        """The target over the prompt behind its cache, in passes of `prefill_rows`; `behind` takes each pass' row and
        taps."""
        most, cached = self.prefill_rows or len(prompt), self.target.length
        self.target.reach = self.drafter.reach = 0
        self._began, self._came = Standing((len(prompt),), (budget - 1,)), []
        for start in range(cached, len(prompt), most):
            ids = prompt[start : start + most]
            part = record.part(start - cached, len(ids), len(prompt) - cached)
            tokens, taps = self._target_pass(ids, round_up(len(ids), self.prompt_bucket), "target", part)
            self.target.length += len(ids)
            behind(prompt[cached:], start - cached, taps, record)
        self._emitted, self._left, self._drafted = tokens[-1:], budget - 1, None
        self._text = np.concatenate([prompt, self._emitted])
        self._taps, self._verified = (taps, len(ids) - 1), None
        return int(tokens[-1])

    def _prefill_drafter(self, prompt: np.ndarray, start: int, taps: Any, record: Recorder) -> None:
        """The drafter over the rows that the target has just run over; a token ahead, the prompt's last one waits."""
        due = prompt[self.drafter.ahead :]
        ids = due[start : start + self.target.length - self.drafter.length]
        if len(ids):
            part = record.part(start, len(ids), len(due))
            self.drafter.prefill(taps, ids, round_up(len(ids), self.prompt_bucket), part)
            self.drafter.length += len(ids)

    def _target_pass(self, ids: np.ndarray, width: int, group: str, record: Recorder) -> tuple[np.ndarray, Any]:
        """Rows behind the target's cache: their greedy ids, and their taps for the next draft."""
        positions = self.target.length + np.arange(len(ids))
        rows = pad_rows(ids, positions, positions, widest(self._engine, width), self.target.trash)
        x, taps = self.target.forward(rows, self.drafter.config.taps, record)
        return self.target.choose(x, rows, group, record), taps

    def _widen(self, k: int) -> None:
        """Passes of this round are as wide as in a loop that knows the length as it was some rounds ago."""
        if self.chunk is None:
            return
        came = iter(self._came)

        def read(standing: Standing, rounds: int) -> Standing:
            return reduce(lambda at, count: at.behind([count], [False]), islice(came, rounds), standing)

        ahead = rounds_ahead(self._began, k, self.chunk, read)
        self.target.reach = self.drafter.reach = next(islice(ahead, len(self._came), None), 0)

    def _begin(self, round_: int) -> None:
        """Nothing is drafted in this round yet."""
        if self.sampler is not None:
            self.sampler.proposed = Proposed(round_)

    def _record_caches(self, record: Recorder) -> None:
        self.target.record(record)
        self.drafter.record(record)

    def _admit(self, prompt_ids: Sequence[int], budget: int) -> np.ndarray:
        """The prompt as int64 [S], once it, the budget and K rows are known to fit."""
        rows, vocab = self.target.positions, self.target.config.vocab
        prompt = self._ids(prompt_ids, len(prompt_ids))
        if len(prompt) < 2:
            raise UsageError(f"prompt_ids: {len(prompt)} tokens are too few, the drafter's prefill needs 2.")
        if budget < 1:
            raise UsageError(f"max_new_tokens: {budget} is not a budget, at least 1 is needed.")
        if len(prompt) + budget + self.k > rows:
            raise UsageError(
                f"max_positions: {len(prompt)} prompt tokens, {budget} new tokens and K = {self.k} "
                f"do not fit the {rows} rows of the cache ({self.limit})."
            )
        if prompt.min() < 0 or prompt.max() >= vocab:
            raise UsageError(f"prompt_ids: an id lies outside the vocabulary of {vocab}.")
        return prompt

    def _drafts(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        if len(ids) > self.k:
            raise UsageError(f"token ids: {len(ids)} drafts are more than K = {self.k}.")
        return self._ids(ids, len(ids))

    def _ids(self, ids: Sequence[int] | np.ndarray, count: int) -> np.ndarray:
        ids = np.asarray(ids)
        if ids.shape != (count,) or (count and ids.dtype.kind not in "iu"):
            raise UsageError(f"token ids: {count} integers are expected, not {ids.dtype} {list(ids.shape)}.")
        return ids.astype(np.int64)

    def _refuse_skipped(self, count: int) -> None:
        if self.drafter.config.taps and self.drafter.length + count != self.target.length:
            raise UsageError("the drafter skipped a round: only verify and commit, or a new prefill, can follow.")

    def _refuse_finished(self) -> None:
        if not len(self._emitted):
            raise UsageError("the device holds no sequence: prefill comes first.")
        if self.finished:
            raise UsageError("the sequence has ended: only a new prefill can follow.")


@lru_cache(maxsize=1)
def _modules(count: int, newest: str) -> tuple[str, ...]:
    """What is loaded of this package. So many modules, this one last, are the same ones: thousands, walked once."""
    return ("parity.device", *sorted(name for name in sys.modules if name.startswith("parity.device.")))


@cache
def _versions() -> dict[str, str]:
    """Of the packages that it computes with; to read them takes milliseconds."""
    return {name: version(name) for name in ("numpy", "ml_dtypes", "safetensors")}
