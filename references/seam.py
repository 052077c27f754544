"""The references behind the device seam, so that the gates can judge them too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity.errors import UsageError
from parity.references.capture import to_numpy, torch_tap
from parity.references.drafting import load_loop
from parity.references.loop import SpeculativeLoop
from parity.references.rotary import rotate
from parity.seam import Description, Sampling, Tap

__all__ = ["Reference", "load", "rotate"]

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def load(
    target: str | Path,
    drafter: str | Path,
    k: int,
    precision: str = "float32",
    max_positions: int | None = None,
    partial_kv: str = "",
    kv_cache: str = "",
) -> Reference:
    """Load a pair of checkpoints as a `parity.seam.Device`: `--device parity.references.seam:load`.

    Args:
        k: K, drafts per round.
        precision: `bfloat16` or `float32`.
        max_positions: rows that prompt, budget and K drafts have to fit; the smaller context where None.
        partial_kv: the pages of its cache that a row of the drafter attends to; see `parity.partial_kv`.
        kv_cache: the formats of the caches; see `parity.kv_cache`.

    Raises:
        UsageError: an option or a checkpoint that does not fit.
    """
    if precision not in DTYPES:
        raise UsageError(f"precision: {precision!r} is unknown; there are {', '.join(DTYPES)}")
    dtype = DTYPES[precision]
    loop = load_loop(target, drafter, dtype, k, max_positions, partial_kv=partial_kv, kv_cache=kv_cache)
    return Reference(loop, precision)


class Reference:
    """`parity.seam.Device` and `Poisonable` over the loop's steps: NumPy in and out.

    A verb that raises leaves the state it found; a round may start again from `draft`.
    """

    def __init__(self, loop: SpeculativeLoop[Any, Any], precision: str):
        self.loop, self.precision = loop, precision
        self.started = False
        self.drafted: Callable[[], None] | None = None
        self.verified = 0

    def describe(self) -> Description:
        """What the references are."""
        loop = self.loop
        return Description(
            name="references",
            precision=self.precision,
            num_layers=loop.target.config.num_hidden_layers,
            num_drafter_layers=loop.drafter.config.num_layers,
            k=loop.most,
            max_positions=loop.max_positions,
            eos=loop.eos,
            versions={name: version(name) for name in ("torch", "transformers", "safetensors", "numpy")},
            modules=(__name__, type(loop).__module__),
            family=loop.drafter.config.family,
            partial_kv="" if loop.partial is None else str(loop.partial),
            kv_cache=str(loop.formats),
            varies_k=True,
            samples=True,
        )

    def sample(self, settings: Sampling | None, uniforms: np.ndarray) -> None:
        """See `parity.seam.Samples`."""
        self.loop.sample(settings, uniforms)

    @torch.no_grad()
    def prefill(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap) -> int:
        """Round 0; the first token."""
        self.loop.admit(len(prompt_ids), max_new_tokens)
        vocabulary = self.loop.target.config.vocab_size
        if not all(0 <= int(one) < vocabulary for one in prompt_ids):
            raise UsageError(f"a prompt has an id outside the vocabulary of {vocabulary}")
        with self._whole(tap):
            self.loop.begin(max_new_tokens, torch_tap(tap))
            self.loop.prefill(torch.tensor([int(one) for one in prompt_ids]))
            self.started, self.drafted, self.verified = True, None, 0
        return self.loop.state.emitted[0]

    @torch.no_grad()
    def draft(self, tap: Tap, k: int | None = None) -> np.ndarray:
        """K ids, int64; as many as this round is asked for."""
        self._refuse_finished()
        most = self.loop.most
        if k is not None and not 0 <= k <= most:
            raise UsageError(f"{k} drafts are asked for, this pair drafts 0 to {most}")
        again = self.drafted or self._drafter()
        again()
        if self.loop.skipped():
            raise UsageError("the drafter skipped a round: only verify and commit, or a new prefill, can follow")
        with self._whole(tap):
            drafts = self.loop.propose(most if k is None else k)
            self.drafted = again
        return to_numpy(drafts)

    @torch.no_grad()
    def verify(self, draft_tokens: np.ndarray, tap: Tap) -> np.ndarray:
        """n+1 ids, int64."""
        self._refuse_finished()
        if len(draft_tokens) > self.loop.most:
            raise UsageError(f"{len(draft_tokens)} drafts are more than K = {self.loop.most}")
        with self._whole(tap):
            self.loop.target.crop(self.loop.state.length)
            tokens = self.loop.verify(_ids(draft_tokens))
            self.verified = len(tokens)
        return to_numpy(tokens)

    @torch.no_grad()
    def commit(self, draft_tokens: np.ndarray, verify_tokens: np.ndarray, tap: Tap) -> np.ndarray:
        """The ids emitted, int64."""
        self._refuse_finished()
        if self.verified != len(verify_tokens) or len(draft_tokens) != len(verify_tokens) - 1:
            raise UsageError("commit takes the drafts and tokens of this round's verify")
        before = len(self.loop.state.emitted)
        with self._whole(tap):
            _, length = self.loop.accept(_ids(draft_tokens), _ids(verify_tokens))
            self.loop.commit(length)
            self.drafted, self.verified = None, 0
        return np.array(self.loop.state.emitted[before:], np.int64)

    def poison(self, value: float) -> None:
        """Put `value` into every cached row behind the lengths; between rounds the references keep none."""
        loop, state = self.loop, self.loop.state
        for layer in range(loop.target.config.num_hidden_layers):
            rows = (x.clone() for x in loop.target.rows(layer))
            loop.target.load(layer, *(x.index_fill(0, torch.arange(state.length, len(x)), value) for x in rows))
        state.cache.rows = {layer: (k.clone(), v.clone()) for layer, (k, v) in state.cache.rows.items()}
        for x in (x for pair in state.cache.rows.values() for x in pair):
            x[:, :, state.draft_length :] = value

    @contextmanager
    def _whole(self, tap: Tap) -> Iterator[None]:
        """All of a verb or nothing of it: an error puts back what the verb found."""
        loop, own = self.loop, (self.started, self.drafted, self.verified)
        state, streams, target = loop.state.copy(), dict(loop.target.streams), loop.target.keep()
        loop.state.tap = torch_tap(tap)
        loop.target.watch(loop.state.tap)
        try:
            yield
        except BaseException:
            target()
            loop.state, loop.target.streams = state, streams
            self.started, self.drafted, self.verified = own
            raise

    def _drafter(self) -> Callable[[], None]:
        """What puts the drafter's cache and length back as they are now; steps never change cached tensors in place."""
        cache, length = self.loop.state.cache.copy(), self.loop.state.draft_length

        def put_back() -> None:
            self.loop.state.cache, self.loop.state.draft_length = cache.copy(), length

        return put_back

    def _refuse_finished(self) -> None:
        if not self.started:
            raise UsageError("there is no sequence: prefill comes first")
        if self.loop.finished():
            raise UsageError("the sequence has ended: only a new prefill can follow")


def _ids(tokens: np.ndarray) -> torch.Tensor:
    return torch.tensor([int(one) for one in tokens], dtype=torch.long)
