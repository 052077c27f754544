"""The target of `gpt_oss` in the speculative loop, and the goldens made with it: `dump-golden --reference plain`.

Loop, drafters, prompts and floors are those of `dump`; the target's stages are another opinion than Hugging Face's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from parity.golden.producer import Producer
from parity.references import drafting, dump, gpt_oss, runs, stored
from parity.references.capture import TorchTap, Wrapped, ignore
from parity.references.checkpoint import read_eos
from parity.references.kv_cache import Quantiser
from parity.references.loop import SpeculativeLoop
from parity.references.peagle import PEagle
from parity.references.roundings import Roundings, linear_by_chance
from parity.references.target import Target

__all__ = ["PlainTarget", "Request", "dump_golden", "load_loop"]

NAME = "references: gpt_oss"
"""How the name of a golden begins whose target is this one's."""


@dataclass(frozen=True)
class Request(runs.Request):
    """`memory`: GiB of weights that are kept converted, the rest stays in its files; None for all weights in memory.

    `batch` is the number of prompts that share each visit of such weights.
    """

    memory: float | None = None
    batch: int = 1


class PlainTarget:
    """gpt-oss over one sequence: rows in, logits and residual streams out.

    Args:
        hot: what is kept of weights that stay in their files; all layers are in memory where None.

    Raises:
        UsageError: the checkpoint does not fit.
    """

    module = gpt_oss.__name__
    quantiser: Quantiser | None = None

    def __init__(self, checkpoint: str | Path, dtype: torch.dtype, hot: stored.Hot | None = None):
        folder = Path(checkpoint)
        files = gpt_oss.Checkpoint(folder, dtype) if hot is None else stored.StoredCheckpoint(folder, dtype, hot)
        self.config, self.eos = files.config, read_eos(Path(checkpoint))
        self.outer = files.outer()
        self.layers = [files.layer(number) for number in range(self.config.num_hidden_layers)]
        self.streams: dict[int, torch.Tensor] = {}
        self.sums = Reordered(0)
        self.reset(ignore)

    @property
    def embeddings(self) -> torch.Tensor:
        """The table of token embeddings, [V, H]."""
        return self.outer["model.embed_tokens.weight"]

    @property
    def head(self) -> torch.Tensor:
        """The table that the logits come from, [V, H]."""
        return self.outer["lm_head.weight"]

    def numbers(self) -> tuple[dict[str, float], Mapping[str, Any], float]:
        """Numbers of the maths by their names in config.json, the RoPE, and the scale of cos and sin."""
        config = self.config
        said = {name: getattr(config, name) for name in ("swiglu_alpha", "swiglu_limit", "rms_norm_eps")}
        return said, config.rope, gpt_oss.schedule(config.rope, config.head_dim)[1]

    def roundings(self, drafter: nn.Module) -> PlainRoundings:
        """This target's other roundings and this drafter's; see `parity.references.roundings`."""
        return PlainRoundings(self, Roundings(drafter))

    def reset(self, tap: TorchTap) -> None:
        """Start a new sequence with an empty cache."""
        self.cache: list[gpt_oss.Cache | None] = [None] * len(self.layers)
        self.watch(tap)

    def watch(self, tap: TorchTap) -> None:
        """Hand stages to this tap from now on."""
        self.tap = tap

    def keep(self) -> Callable[[], None]:
        """What puts the cache back as it is now; steps never change cached tensors in place."""
        kept = list(self.cache)

        def put_back() -> None:
            self.cache = list(kept)

        return put_back

    @torch.no_grad()
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Feed ids [S] behind the cached rows; logits [S, V]. `streams[l]` holds in_of[l], [S, H], l = 0 … L."""
        with self.sums:
            hidden = gpt_oss.embed(self.embeddings, ids, self.tap)
            for number in range(len(self.layers)):
                self.streams[number] = hidden
                hidden, self.cache[number] = self._layer(number, hidden)
            self.streams[len(self.layers)] = hidden
            return gpt_oss.head(self.config, self.outer, hidden, self.tap)

    def _layer(self, number: int, hidden: torch.Tensor) -> tuple[torch.Tensor, gpt_oss.Cache]:
        """One layer; not computed where an interrupted run recorded all that the next one needs."""
        hold = gpt_oss.as_it_is if self.quantiser is None else partial(self.quantiser.through, layer=number)
        recorded = self.tap.recorded(f"target.layers.{number}.") if isinstance(self.tap, Wrapped) else {}
        if gpt_oss.complete(recorded):
            return gpt_oss.continued(recorded, self.cache[number], self.tap, hold)
        return gpt_oss.layer(self.config, number, self.layers[number], hidden, self.cache[number], self.tap, hold)

    def taps(self, inputs: tuple[int, ...]) -> torch.Tensor:
        """The residual streams entering these layers, concatenated in this order: [S, T*H]."""
        return torch.cat([self.streams[layer] for layer in inputs], dim=-1)

    def rows(self, layer: int) -> gpt_oss.Cache:
        """A layer's cached keys and values, [S, G, D] each.

        Raises:
            LookupError: no row was fed yet.
        """
        held = self.cache[layer]
        if held is None:
            raise LookupError(f"layer {layer} has no cached row")
        return held

    def load(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Put back a layer's cached rows."""
        self.cache[layer] = (k, v)

    def crop(self, length: int) -> None:
        """Keep the first `length` rows of every layer."""
        for layer in range(len(self.layers)):
            k, v = self.rows(layer)
            self.load(layer, k[:length], v[:length])


class Reordered(TorchFunctionMode):
    """Every product with a weight summed in an order drawn by number, and linear layers rounded by chance; 0 is the
    order of the checkpoint.

    Sums over heads, keys and norms keep theirs, as in `parity.references.roundings`.
    """

    def __init__(self, number: int):
        super().__init__()
        self.number, self.draw = number, torch.Generator().manual_seed(number)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Permute what `linear` and `@` sum over; the rest is untouched."""
        if self.number and func in (F.linear, torch.Tensor.__matmul__, torch.Tensor.matmul):
            x, weight, *rest = args
            order = torch.randperm(x.shape[-1], generator=torch.Generator().manual_seed(self.number))
            axis = 1 if func is F.linear else 0
            args = (x[..., order], weight.index_select(axis, order), *rest)
            if func is F.linear and x.dtype == torch.bfloat16:
                return linear_by_chance(args[0], args[1], rest[0] if rest else None, self.draw)
        return func(*args, **(kwargs or {}))


class PlainRoundings:
    """The roundings of a plain target and of its drafter, by number."""

    def __init__(self, target: PlainTarget, drafter: Roundings):
        self.target, self.drafter = target, drafter

    def choose(self, number: int) -> None:
        """Compute with this rounding from now on."""
        self.target.sums = Reordered(number)
        self.drafter.choose(number)


load_loop = partial(drafting.load_loop, oracle=PlainTarget)
"""As `parity.references.drafting.load_loop`, over the target of `gpt_oss`."""


def made(producer: Producer) -> bool:
    """Whether a golden's producer is this one."""
    return __name__ in producer.modules and producer.name.startswith(NAME)


def dump_golden(request: Request) -> Path:
    """Dump a golden whose target is `gpt_oss`; drafter and loop are those of `--reference own`.

    Raises:
        UsageError: a checkpoint, the prompts, K, the budget or a stage glob does not fit.
    """
    modules, load, hot = dump.own_modules(__name__), load_loop, None
    if request.memory is not None:
        drafting.refuse_family(request.drafter, "plain --memory", ("p-eagle",))
        hot = stored.Hot(int(request.memory * 2**30))
        load = partial(_load_stored, hot)
    drafter = drafting.drafting(request.drafter).source
    computed = runs.Computed(f"{NAME} + {drafter}", load, modules, target={gpt_oss.__name__})
    if hot is not None:
        computed = replace(computed, spooled=True)
    if hot is not None and request.batch > 1:
        computed = replace(computed, prompts=request.batch, company=hot.company.together)
    return dump.dump(request, computed)


def _load_stored(hot: stored.Hot, target: Path, drafter: Path, dtype: torch.dtype, k: Any) -> SpeculativeLoop[Any, Any]:
    """The loop over weights that stay in their files; all precisions share what is kept."""

    def load(checkpoint: str | Path, dtype: torch.dtype, target: Target) -> PEagle:
        return stored.load_peagle(Path(checkpoint), dtype, hot)

    return drafting.load_loop(target, drafter, dtype, k, oracle=partial(PlainTarget, hot=hot), load=load)
