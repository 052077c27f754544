"""What the loop needs of a target, whoever computes it. It names none of them: they are opinions apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from parity.references.capture import TorchTap
from parity.references.kv_cache import Quantiser


class Chooser(Protocol):
    """A model whose bfloat16 roundings can be drawn anew."""

    def choose(self, number: int) -> None:
        """Compute with this rounding from now on; 0 is the order of the checkpoint."""


class Target(Protocol):
    """gpt-oss over one sequence: rows in, logits and residual streams out.

    Methods that may be mutation points (`parity.references.points`) stand as what they are called with.

    Attributes:
        streams: the residual streams of the last pass by layer, [S, H].
        config: sizes under the names of config.json: transformers' config, or one of our own.
        quantiser: what the cache of the next sequence makes of keys and values, where it keeps another format.
    """

    streams: dict[int, Tensor]
    config: Any
    quantiser: Quantiser | None

    @property
    def module(self) -> str:
        """The module that the target's maths comes from."""

    @property
    def eos(self) -> tuple[int, ...]:
        """The ids that end a sequence."""

    @property
    def embeddings(self) -> Tensor:
        """The table of token embeddings, [V, H]."""

    @property
    def head(self) -> Tensor:
        """The table that the logits come from, [V, H]."""

    def numbers(self) -> tuple[dict[str, float], Mapping[str, Any], float]:
        """Numbers of the maths by their names in config.json, the RoPE, and the scale of cos and sin."""

    def roundings(self, drafter: nn.Module) -> Chooser:
        """This target's other roundings and this drafter's."""

    @property
    def reset(self) -> Callable[[TorchTap], None]:
        """Start a new sequence with an empty cache."""

    def watch(self, tap: TorchTap) -> None:
        """Hand stages to this tap from now on."""

    def keep(self) -> Callable[[], None]:
        """What puts the cache back as it is now."""

    @property
    def forward(self) -> Callable[[Tensor], Tensor]:
        """Feed ids [S] behind the cached rows; logits [S, V]."""

    @property
    def taps(self) -> Callable[[tuple[int, ...]], Tensor]:
        """Layer numbers to the residual streams entering these layers, concatenated in this order: [S, T*H]."""

    def rows(self, layer: int) -> tuple[Tensor, Tensor]:
        """A layer's cached keys and values, [S, G, D] each."""

    def load(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Put back a layer's cached rows."""

    @property
    def crop(self) -> Callable[[int], None]:
        """Keep the first `length` rows of every layer."""
