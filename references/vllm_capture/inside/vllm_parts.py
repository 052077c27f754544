"""What the recorder reaches into: vLLM 0.32's runner, proposer and models, as far as it calls, reads or replaces them.

Types only, for a checker that has no vLLM; nothing imports this at run time. N rows of a step, V ids of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from torch import Tensor


class Module(Protocol):
    """A `torch.nn.Module` whose submodules are declared."""

    register_forward_hook: Callable[..., object]
    register_forward_pre_hook: Callable[..., object]


class Heads(Module, Protocol):
    """Attention over the cache, called with queries, keys and values [N, heads*D]."""

    num_heads: int
    num_kv_heads: int


class TargetAttention(Module, Protocol):
    """Projections around `attn`."""

    attn: Heads


class Experts(Module, Protocol):
    """A layer's experts and the router before them."""

    router: Module
    experts_per_token: int


class TargetLayer(Module, Protocol):
    """A layer of gpt-oss; it returns its branch and the residual stream apart."""

    input_layernorm: Module
    attn: TargetAttention
    mlp: Experts


class TargetBody(Protocol):
    """gpt-oss without its head."""

    embedding: Module
    layers: Iterable[TargetLayer]
    norm: Module


class TargetModel(Protocol):
    """gpt-oss."""

    model: TargetBody

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits [N, V] of hidden states behind the last norm."""


class DrafterLayer(Module, Protocol):
    """A layer of the drafter; it returns as `TargetLayer` does."""

    self_attn: Module


class DrafterBody(Protocol):
    """The drafter without its head."""

    layers: Iterable[DrafterLayer]
    norm: Module


class DrafterModel(Module, Protocol):
    """An EAGLE-3 or P-EAGLE drafter, called with `input_ids`, `positions` and `hidden_states`."""

    model: DrafterBody
    logits_processor: Module


class Rows(Protocol):
    """The attention metadata of a drafter pass: where requests begin, and where rows go in the paged cache."""

    query_start_loc: Tensor
    slot_mapping: Tensor
    block_table_tensor: Tensor


class Proposer(Protocol):
    """What drafts; the masks are None where it does not draft in parallel."""

    model: DrafterModel
    block_size: int
    is_masked_token_mask: Tensor | None
    is_rejected_token_mask: Tensor | None
    propose: Callable[..., Tensor]
    set_inputs_first_pass: Callable[..., tuple[int, Tensor, Rows]]
    _update_positions_dependent_metadata: Callable[..., object]


class Batch(Protocol):
    """The requests of a step, in row order."""

    req_ids: Sequence[str]


class OnBoth(Protocol):
    """A buffer on host and device."""

    gpu: Tensor


class Verified(Protocol):
    """What sampling is told of a verify step: which rows the scores are of."""

    logits_indices: Tensor


class Sampled(Protocol):
    """What sampling returns: ids [requests, K+1]."""

    sampled_token_ids: Tensor


class Runner(Protocol):
    """What runs a step."""

    model: TargetModel
    drafter: Proposer
    input_batch: Batch
    query_start_loc: OnBoth
    propose_draft_token_ids: Callable[..., Tensor]
    _sample: Callable[[Tensor, Verified | None], Sampled]
