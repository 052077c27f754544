"""The product behind a stage: what enters it, by whose weight it is multiplied, and what might have entered instead.

A stage that ends in a product, y = x W^T, is a sum over parts: heads, experts, biases, input columns. A device's error
at such a stage lies in what some of them contribute. A bias is one more column of W, met by ones (by an expert's share
of the row).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from parity.references.hypotheses.mutating import head_of, layers_of
from parity.references.products.attention import heads
from parity.references.products.gated import experts, mlp
from parity.references.products.layers import whole_layer
from parity.references.products.product import Made, Product, entered, linear

__all__ = ["Product", "watched"]


@contextmanager
def watched(loop: Any, stage: str) -> Iterator[Made]:
    """While it is open, a run of the loop is watched for a stage's product; what is given makes it once the run ended.

    Raises:
        LookupError: the stage is no product that is watched.
    """
    side, _, rest = stage.partition(".")
    part = rest.rsplit(".", 1)[-1]
    with ExitStack() as stack:
        if rest.startswith("layers."):
            number = int(rest.split(".")[1])
            layer = layers_of(loop, side, number)[0][1]
            by_part = {
                "attn_out": heads,
                "ffn_out": experts if side == "target" else mlp,
                "out": whole_layer,
            }
            if part in by_part:
                yield by_part[part](loop, side, number, layer, stack)
                return
            module = {"v": lambda: layer.self_attn.v_proj, "router_logits": lambda: layer.mlp.router}[part]()
        else:
            module = {
                "target.logits": lambda: head_of(loop, "target"),
                "verify.logits": lambda: head_of(loop, "target"),
                "drafter.logits": lambda: head_of(loop, "drafter"),
                "drafter.fc_out": lambda: loop.drafter.fc,
            }[stage]()
        seen = entered(module, stack)
        yield lambda: linear(module, torch.cat(seen))
