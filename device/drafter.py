"""What drafters have in common on an engine: weights, caches, layers, head; and those on taps alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parity.device.drafter_config import DrafterConfig, FusedConfig
from parity.device.engines import AnyEngine
from parity.device.kernels import rows as kernel_rows
from parity.device.kernels.drafter_layer import midlayer, normed_taps, plain_layer
from parity.device.kernels.embed import embed
from parity.device.kernels.head import greedy, to_target_ids
from parity.device.kernels.linear import linear
from parity.device.kernels.norm import llama_norm
from parity.device.kernels.pages import PageStep, summarise
from parity.device.kernels.program import program
from parity.device.kernels.round import Parts, State
from parity.device.kernels.step import Step
from parity.device.kernels.tap import Tap
from parity.device.model import Model, Saved
from parity.device.plan import Plan
from parity.device.recorder import Recorder
from parity.device.rows import Rows, pad_rows, refuse_outside
from parity.device.weights import Weights


class Drafter(Model, ABC):
    """Weights, caches and passes of a drafter; its family says what the rows of a pass are.

    `ahead` is by how much a row's token is ahead of its position.

    Args:
        most: K, drafts of a round at the most: K + 1 tokens may come out of one, and are the next one's committed rows.
    """

    side = "drafter"
    state = ("caches", "summaries", "length")
    family: str
    ahead = 1
    on_device: Callable[[State, Parts, Plan], Any] | None = None
    """A round's drafts where no host takes part in it; None for a family that cannot."""
    run_over = False
    """Whether its rows of accepted drafts stay."""
    config: DrafterConfig

    def __init__(
        self,
        config: DrafterConfig,
        weights: tuple[Weights, list[Weights]],
        positions: int,
        engine: AnyEngine,
        dtype: np.dtype,
        most: int,
    ) -> None:
        self.config, self.most = config, most
        super().__init__(weights, config.attention, (None,), positions, engine, dtype)

    def clear(self) -> None:
        """As the parent's, and with partial KV the summaries of each layer's pages."""
        super().clear()
        self.summaries: list[tuple[Any, Any]] = []
        if self.config.partial is not None:
            pages = self.config.partial.pages(self.positions) + 1  # the last one takes what no page is for
            shapes = [(1, pages, *keys.shape[2:]) for keys, _ in self.caches]
            self.summaries = [tuple(self.engine.zeros(shape, self.dtype) for _ in "lh") for shape in shapes]

    def record(self, record: Recorder) -> bool:
        """As the parent's; where rows were replaced the summaries are made anew."""
        changed = super().record(record)
        if changed:
            self._summarise()
        return changed

    def load(self, saved: Saved) -> None:
        """As the parent's; the summaries are made anew."""
        super().load(saved)
        self._summarise()

    def _summarise(self) -> None:
        """Every page's summary, with partial KV."""
        if self.config.partial is not None:
            every = self.engine.array(np.arange(self.config.partial.pages(self.positions), dtype=np.int32)[None])
            for keys, _, low, high in self.layer_caches():
                summarise(keys, low, high, every, self.config.partial.page)

    def poison(self, value: float) -> None:
        """As the parent's, the summaries of pages that are not full included."""
        super().poison(value)
        if self.config.partial is not None:
            full = self.length // self.config.partial.page
            for one in (one for pair in self.summaries for one in pair):
                one[:, full:] = self.engine.array(np.full((1, 1, 1, 1), value, np.float32), self.dtype)

    def layer_caches(self) -> list[tuple[Any, ...]]:
        """What each layer's attention reads: keys and values, and with partial KV the two summaries of its pages."""
        if not self.summaries:
            return list(self.caches)
        return [(*pair, *summary) for pair, summary in zip(self.caches, self.summaries, strict=True)]

    def step(self, rows: Rows) -> Any:
        """As the parent's; with partial KV the rows' pages take the place of a mask."""
        if self.config.partial is None:
            return super().step(rows)
        refuse_outside(self.side, "position", rows.positions, self.positions)
        refuse_outside(self.side, "slot", rows.slots, self.trash + 1)
        page, array = self.config.partial.page, self.engine.array
        most = (rows.width - 1) // page + 2
        touched = np.minimum(rows.slots[:, :1] // page + np.arange(most), self.config.partial.pages(self.positions))
        made = self.make_step(array(rows.positions), array(rows.slots), self.tables, 0, ())
        pages = PageStep(array(rows.positions), array(rows.positions // page), array(touched.astype(np.int32)))
        return replace(made, pages=pages)

    @abstractmethod
    def prefill(self, taps: Any, ids: np.ndarray, width: int, record: Recorder) -> None:
        """Run over the prompt: ids [S - ahead], with their taps where it has some; padded to `width` rows."""

    @abstractmethod
    def draft(self, taps: Any, first: int, committed: np.ndarray, k: int, record: Recorder) -> np.ndarray:
        """Run over the committed tokens, and draft behind the last of them.

        Args:
            taps: [1, S, T * H of the target], of one target pass; None for a drafter without.
            first: the row of `taps` that belongs to the first committed row.
            committed: ids [C]; with taps, row i pairs the token behind a position with the taps at that position.

        Returns:
            target ids, int64 [K]; with K = 0 none, once it has run over the committed tokens.
        """

    @abstractmethod
    def layout(self, ids: np.ndarray, others: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids, positions and slots of a pass' rows, each int64; `others` is what the family makes of it."""

    def due(self, text: np.ndarray, emitted: np.ndarray) -> np.ndarray:
        """The committed tokens [C] of the next draft, of all ids so far and those of the last round: the latter."""
        return emitted

    def kept(self, before: int, drafts: np.ndarray, emitted: np.ndarray) -> int:
        """Rows that stay in its cache behind a round in which it drafted: those that had true hiddens.

        Args:
            before: rows of the target's cache before the round.
            drafts: what it drafted.
            emitted: what came out.
        """
        return before

    def choose(self, x: Any, committed: int, k: int, record: Recorder) -> np.ndarray:
        """Drafts of row `committed` - 1 and of those behind it: target ids, int64 [k]."""
        x = kernel_rows.window(x, self.engine.array(np.array([committed - 1])), k)
        tap = record.bind(self.side, k)
        if self.sampler is None:
            ids = choose(x, self.outer, self.config.eps, tap)
        else:
            ids = self.sampler.draft(scores(x, self.outer, self.config.eps, tap), self.outer["d2t"])
        drafts = record.ids(self.side, "draft_tokens", ids, k)
        if self.sampler is not None:
            self.sampler.take(drafts)
        return drafts

    def nothing(self, record: Recorder) -> np.ndarray:
        """The drafts of a round of K = 0: int64 [0]."""
        return record.exact(self.side, "draft_tokens", np.empty(0, np.int64))

    def rows(self, ids: np.ndarray, others: int, width: int, record: Recorder) -> Rows:
        """The rows of a pass, as the recorder wants them and padded."""
        ids, positions, slots = self.layout(ids, others)
        ids = record.exact(self.side, "input_ids", ids)
        positions = record.exact(self.side, "positions", positions)
        slots = record.exact(self.side, "slots", slots)
        return pad_rows(ids, positions, slots, width, self.trash)

    def run(self, rows: Rows, x: Any, tap: Tap) -> Any:
        """Every layer over rows [1, W, H]: the last residual stream."""
        return plain_layers(x, self.step(rows), self.layers, self.layer_caches(), self.config, tap)

    def shown_taps(self, taps: Any, first: int, count: int, width: int, record: Recorder) -> Any:
        """`count` rows of a target pass' taps from `first` on, padded to `width`, as the recorder wants them."""
        taps = kernel_rows.window(taps, self.engine.array(np.array([first])), width)
        return record.bind(self.side, count)("taps", taps)

    def embedded(self, rows: Rows) -> Any:
        """The embeddings of a pass' ids [1, W, H]."""
        return embed(self.engine.array(rows.ids), self.outer["embed"])


class FusedDrafter(Drafter):
    """A drafter on taps: its first layer joins embeddings with the fused taps."""

    config: FusedConfig

    def normed(self, taps: Any) -> Any:
        """Taps, or what stands for them, as `fc` takes them."""
        return normed(taps, self.outer, self.config.eps)

    @abstractmethod
    def fused(self, taps: Any, committed: int) -> Any:
        """Fused hidden of every row [1, W, H]; the first `committed` ones have taps [1, W, T * H of the target]."""

    def run(self, rows: Rows, x: Any, tap: Tap) -> Any:
        """Every layer over rows of fused hidden [1, W, H]: the last residual stream."""
        step, embedded = self.step(rows), self.embedded(rows)
        return fused_layers(embedded, x, step, self.layers, self.layer_caches(), self.config, tap)


def plain_layers(
    x: Any,
    step: Step,
    layers: Sequence[dict[str, Any]],
    caches: Sequence[tuple[Any, ...]],
    config: DrafterConfig,
    tap: Tap,
    first: int = 0,
) -> Any:
    """Llama layers from number `first` on over x [B, W, H]: the residual stream that leaves the last."""
    for layer, (weights, held) in enumerate(zip(layers, caches, strict=True)):
        if layer >= first:
            x = plain_layer(x, step, weights, held, config, tap.at(layer))
    return x


def fused_layers(
    embedded: Any,
    x: Any,
    step: Step,
    layers: Sequence[dict[str, Any]],
    caches: Sequence[tuple[Any, ...]],
    config: FusedConfig,
    tap: Tap,
) -> Any:
    """The same behind a first layer that joins embeddings and fused hidden, each [B, W, H]."""
    x = midlayer(embedded, x, step, layers[0], caches[0], config, tap.at(0))
    return plain_layers(x, step, layers, caches, config, tap, first=1)


def normed(taps: Any, outer: dict[str, Any], eps: float) -> Any:
    """Taps [B, W, T * H of the target] as `fc` takes them: over their root mean square where a drafter norms them."""
    return normed_taps(taps, outer["tap_norm"], eps) if "tap_norm" in outer else taps


@program
def choose(x: Any, outer: dict[str, Any], eps: float, tap: Tap) -> Any:
    """Final norm, draft logits and greedy ids of x [1, K, H], in the target's vocabulary: int32 [1, K]."""
    return to_target_ids(greedy(scores(x, outer, eps, tap)), outer["d2t"])


def scores(x: Any, outer: dict[str, Any], eps: float, tap: Tap) -> Any:
    """Final norm and draft logits of x [1, K, H]: [1, K, VD]."""
    return tap("logits", linear(tap("pre_head_hidden", llama_norm(x, outer["norm"], eps)), outer["head"]))
