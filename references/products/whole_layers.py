"""Whole layers run again pass by pass, on other streams than entered them and with changes inside."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from parity.references.hypotheses.mutating import layers_of
from parity.references.products import attention, norms
from parity.references.products.attention.operands import Pass
from parity.references.products.attention.projections import Anew, Projected, weights_of
from parity.references.products.product import LARGE, entered
from parity.references.products.rotated import Rotation, turned_by


@dataclass(frozen=True)
class LayerPass:
    """One pass of a layer: the stream that entered it [S, H], attention's operands, and what makes q, k and v."""

    stream: Tensor
    held: Pass
    maker: Projected


def unchanged(one: Pass, maker: Projected) -> Pass:
    """No change of attention."""
    return one


@dataclass(frozen=True)
class LayerPasses:
    """All passes of one layer, in order.

    Attributes:
        side, number, layer: which layer of the loop it is.
    """

    side: str
    number: int
    layer: Any
    passes: list[LayerPass]

    def normed(self, x: Tensor) -> Tensor:
        """What attention takes of a stream [S, H]."""
        return norms.of_module(self.layer.input_layernorm)(x)

    def attended(self, one: LayerPass, x: Tensor, anew: Anew = unchanged) -> Tensor:
        """What attention gives [S, H] of a stream that enters a pass; rows of earlier passes are the caches'."""
        maker = replace(one.maker, x=self.normed(x), streams=(x,))
        mixed = anew(maker.put(one.held, "qkv", maker.x), maker).mixed().flatten(1)
        output = self.layer.self_attn.o_proj
        bias = None if output.bias is None else output.bias.detach().double()
        return F.linear(mixed, output.weight.detach().double(), bias)


def layer_passes(loop: Any, stage: str, stack: ExitStack) -> Callable[[], LayerPasses]:
    """Watch the layer that gives a stage from now on; what is given makes its passes once the run ended.

    Raises:
        LookupError: the layer fuses several rows, turns keys apart from their queries, or is too large.
    """
    side, _, name, _ = stage.split(".")
    number = int(name)
    layer = layers_of(loop, side, number)[0][1]
    if hasattr(layer, "hidden_norm"):
        raise LookupError("a layer that fuses embeddings and hidden states")
    if sum(weight.numel() for weight in layer.parameters()) > LARGE:
        raise LookupError("a layer that is too large")
    held, tables = attention.passes(loop, side, number, stack), turned_by(loop, side, number, stack)
    streams = entered(layer.input_layernorm, stack)

    def made() -> LayerPasses:
        if not len(held) == len(tables) == len(streams):
            raise LookupError("keys that are turned apart from their queries, as DFlash's context is")
        weights, prompt = weights_of(layer.self_attn), len(held[0].seen)
        passes = [
            LayerPass(x.double(), replace(one, rotation=of, prompt=prompt), Projected(x, weights, *table))
            for x, one, of, table in zip(streams, held, Rotation.of(tables), tables, strict=True)
        ]
        return LayerPasses(side, number, layer, passes)

    return made
