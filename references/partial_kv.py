"""Partial KV in plain PyTorch: a mask over the whole cache, a layer and row at a time; see `parity.partial_kv`."""

from __future__ import annotations

import torch
from torch import Tensor

from parity.partial_kv import PartialKV
from parity.references.drafter_layers import KVCache, LayerTap
from parity.references.points import point


class PartialKVCache(KVCache):
    """A cache of which each row attends to some pages.

    Args:
        sizes: of sink, retrieved, window and page.
        positions: rows that fit; what the page scores have a column for.
    """

    def __init__(self, sizes: PartialKV, positions: int):
        super().__init__()
        self.sizes, self.pages = sizes, sizes.pages(positions)

    def visible(self, q: Tensor, k: Tensor, mask: Tensor, tap: LayerTap) -> Tensor:
        """The mask [B, 1, W, S] without the pages that a row does not attend to.

        Args:
            q: [B, N, W, D], of rows from slot `start` on.
            k: [B, G, S, D], all keys.
            tap: the layer's, for `page_scores` [B, W, P] and `pages` [B, W, X].
        """
        own = self.own_pages(self.start + torch.arange(q.shape[2]))
        retrievable = self.retrievable(own)
        scores = tap("page_scores", self.ranked(*self.scores(q, k), retrievable))
        chosen = self.attended(tap("pages", self.chosen(scores)))
        retrieved = torch.zeros(*chosen.shape[:2], self.pages, dtype=torch.bool).scatter(-1, chosen, True)
        seen = (retrieved & retrievable) | self.always(own)
        return mask & seen.repeat_interleave(self.sizes.page, dim=-1)[:, None, :, : k.shape[2]]

    @point
    def own_pages(self, slots: Tensor) -> Tensor:
        """The page [W, 1] that each row lies in, by its slot [W]."""
        return slots[:, None] // self.sizes.page

    @point
    def retrievable(self, own: Tensor) -> Tensor:
        """The pages that rows of these pages [W, 1] may retrieve: behind the sink, before the window; bool [W, P]."""
        page = torch.arange(self.pages)
        return (page >= self.sizes.sink) & (page <= own - self.sizes.window)

    @point
    def always(self, own: Tensor) -> Tensor:
        """The pages that such rows see whatever the scores are: the sink, and the window: bool [W, P]."""
        page = torch.arange(self.pages)
        return (page < self.sizes.sink) | (page > own - self.sizes.window)

    @point
    def summaries(self, k: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest and the largest key of each page in each dimension, [B, G, P, D]; of a page's missing rows 0."""
        missing = self.pages * self.sizes.page - k.shape[2]
        rows = torch.nn.functional.pad(k, (0, 0, 0, max(missing, 0)))
        pages = rows[:, :, : self.pages * self.sizes.page].unflatten(2, (self.pages, self.sizes.page))
        return pages.amin(dim=3), pages.amax(dim=3)

    @point
    def scores(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Every page's score for every row, and the mean size of the products it is made of: float32 [B, W, P] each.

        What stands at a page that is not full is no score.
        """
        group = q.shape[1] // k.shape[1]
        low, high = (side.float().repeat_interleave(group, dim=1) for side in self.summaries(k))
        products = torch.stack((q.float() @ low.transpose(2, 3), q.float() @ high.transpose(2, 3)))
        return products.amax(dim=0).mean(dim=1), products.abs().amax(dim=0).mean(dim=1)

    @point
    def ranked(self, scores: Tensor, sizes: Tensor, retrievable: Tensor) -> Tensor:
        """Scores [B, W, P] with every page that a row may not retrieve [W, P] below those that it may.

        They stand below the row's least score by the largest size [B, W, P] of its products, so that a row of small
        scores has no small norm: noise is as large as the products. 0 in a row that may retrieve none.
        """
        least = scores.masked_fill(~retrievable, float("inf")).amin(dim=-1, keepdim=True)
        largest = sizes.masked_fill(~retrievable, 0.0).amax(dim=-1, keepdim=True)
        below = torch.where(retrievable.any(dim=-1, keepdim=True), least - largest, 0.0)
        return torch.where(retrievable, scores, below)

    @point
    def chosen(self, scores: Tensor) -> Tensor:
        """The pages [B, W, X] of the largest scores, of equal ones the first."""
        return scores.sort(dim=-1, descending=True, stable=True).indices[..., : self.sizes.retrieved]

    @point
    def attended(self, pages: Tensor) -> Tensor:
        """The pages [B, W, X] that are read for those retrieved: the same."""
        return pages
