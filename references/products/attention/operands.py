"""The operands of one pass of attention, and what they mix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from parity.references.products.rotated import Rotation

Shared = Callable[[Tensor, Tensor | None], Tensor]
"""From scores [N, S, T], -inf where a key is not seen, and sinks [N, 1, 1] to the shares [N, S, T]."""


def softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """A sink takes its share and gives nothing; a row that sees nothing has no shares."""
    if sinks is not None:
        scores = torch.cat((scores, sinks.expand(*scores.shape[:2], 1)), dim=-1)  # one of its own for each row, or one
    shares: Tensor = scores.softmax(-1).nan_to_num()
    return shares if sinks is None else shares[..., :-1]


def summed(scores: Tensor, shares: Tensor, values: Tensor) -> Tensor:
    """Values [N, T, D] by shares [N, S, T], [N, S, D]; the scores behind the shares say nothing more."""
    return shares @ values


def each_its_own(heads: int, groups: int) -> Tensor:
    """The kv group of each head, [heads]: neighbouring heads share one."""
    return torch.arange(heads) // (heads // groups)


@dataclass(frozen=True)
class Pass:
    """The operands of one pass of one layer.

    `scored` changes the scores [N, S, T], `shared` makes shares of them, `rounded` changes these, and `mixing` adds up
    values by them, with the scores beside (-inf where a key is not seen); `group_of` says which kv group each of so
    many heads takes, of so many groups; `added` [G, D] is added to what a head of the group mixes. `rotation` is None
    where nothing tells it; `prompt` is how many of the first keys a prefill made.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    seen: Tensor
    sinks: Tensor | None
    rotation: Rotation | None = None
    scored: Callable[[Tensor], Tensor] = lambda scores: scores
    shared: Shared = softmax
    rounded: Callable[[Tensor], Tensor] = lambda shares: shares
    mixing: Callable[[Tensor, Tensor, Tensor], Tensor] = summed
    group_of: Callable[[int, int], Tensor] = each_its_own
    added: Tensor | None = None
    prompt: int = 0

    @property
    def distance(self) -> Tensor:
        """How far behind each row each key is, [S, T]; negative for keys of later rows."""
        rows, keys = self.seen.shape
        return torch.arange(keys - rows, keys)[:, None] - torch.arange(keys)

    @property
    def cached(self) -> int:
        """Keys of earlier passes."""
        return self.seen.shape[1] - self.seen.shape[0]

    def turned(self, change: Callable[[Rotation, Tensor, Tensor], Tensor], sides: str, own: bool = False) -> Pass:
        """Queries, keys or both under another rotation; keys stand at the positions before and of the rows.

        Args:
            own: leave the keys of earlier passes as they are.
        """
        of = self.rotation
        if of is None:
            return self
        rows, keys = self.seen.shape
        at = torch.arange(of.first + rows - keys, of.first + rows).double()
        changed: dict[str, Any] = {
            side: change(of, getattr(self, side), at if side == "k" else at[-rows:]) for side in sides
        }
        if own and "k" in changed:
            changed["k"] = torch.cat((self.k[:, : self.cached], changed["k"][:, self.cached :]), dim=1)
        return replace(self, **changed)

    def mixed(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """Values by their shares, [S, N, D], or those of some rows; a row that sees nothing mixes nothing."""
        taken = self.group_of(len(self.q), len(self.k))
        k, v = self.k[taken], self.v[taken]
        scores = self.scored(self.q[:, rows] @ k.transpose(1, 2) * self.q.shape[-1] ** -0.5)
        scores = scores.masked_fill(~self.seen[..., rows, :], float("-inf"))
        mixed = self.mixing(scores, self.rounded(self.shared(scores, self.columns_of_sinks)), v)
        return (mixed if self.added is None else mixed + self.added[taken][:, None]).transpose(0, 1)

    @property
    def columns_of_sinks(self) -> Tensor | None:
        """The sinks as one score of every row, [N, 1, 1]."""
        return None if self.sinks is None else self.sinks.view(-1, 1, 1)


Variant = Callable[[Pass], Pass]
"""One small change of a pass."""


def changed(one: Pass, sides: str, change: Callable[[Tensor], Tensor]) -> Pass:
    """The same with some of its queries, keys and values (`q`, `k`, `v`) changed."""
    operands: dict[str, Any] = {side: change(getattr(one, side)) for side in sides}
    return replace(one, **operands)
