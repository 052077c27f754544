"""The target's oracle: Hugging Face `GptOssForCausalLM`, eager attention, stages taken by forward hooks.

Every hook clones what it records (fused or in-place steps may change a tensor later) and puts back
what the tap returns, so the same hooks serve capture, teacher forcing and the local noise floor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, GptOssForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward
from transformers.utils import logging

from parity.errors import UsageError
from parity.references.capture import TorchTap, ignore
from parity.references.checkpoint import SCALE, TARGET, read_config
from parity.references.hf_checkpoint import check_target
from parity.references.kv_cache import Quantiser
from parity.references.points import point, replaced
from parity.references.rope import read_rope
from parity.references.roundings import Roundings
from parity.references.target import Target

ATTENTION = "eager_with_tapped_queries"

CACHE = "cache" if "cache" in signature(GptOssForCausalLM.forward).parameters else "past_key_values"
"""What transformers calls the cache that a pass is given: from 5.24 on `cache`."""

Routed = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""A router's output: logits [S, E], weights and ids of the chosen experts [S, X]."""


def tapped_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """HF's eager attention, with the queries handed over after RoPE: [1, N, S, D] as [S, N, D]."""
    tap = module.parity_tap
    rows = tap(f"target.layers.{module.layer_idx}.q", query[0].transpose(0, 1))
    out, weights = module.parity_attend(module, rows.transpose(0, 1)[None], key, value, attention_mask, **kwargs)
    return out, weights


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, tapped_attention)
# Without a mask function of the same name transformers passes no mask at all, and says nothing.
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, eager_mask)


class TappedCache(DynamicCache):
    """HF's cache, full context in every layer, with k and v handed over before they are written.

    Args:
        quantiser: what it makes of them, where it keeps another format.
    """

    def __init__(self, tap: TorchTap, quantiser: Quantiser | None = None):
        super().__init__()
        self.tap, self.quantiser = tap, quantiser

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Record new rows [1, G, S, D] as [S, G, D]; the cache keeps what the tap returns."""
        name = f"target.layers.{layer_idx}"
        k = self.tap(f"{name}.k", key_states[0].transpose(0, 1)).transpose(0, 1)[None]
        v = self.tap(f"{name}.v", value_states[0].transpose(0, 1)).transpose(0, 1)[None]
        return self.write(k, v, layer_idx)

    def write(self, k: torch.Tensor, v: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep new rows [1, G, S, D]; all rows."""
        if self.quantiser is None:
            return super().update(k, v, layer)
        through, attended = self.quantiser.through, self.quantiser.attended
        keys, values = super().update(through("k", k, layer), through("v", v, layer), layer)
        return attended("k", keys, k, layer), attended("v", values, v, layer)

    @property
    def held(self) -> list[Any]:
        """The layers: `keys` and `values` are not declared on what transformers' kinds of layers have alike."""
        return list(self.layers)

    def rows(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, [S, G, D] each."""
        held = self.held[layer]
        return held.keys[0].transpose(0, 1), held.values[0].transpose(0, 1)

    def load(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Put back rows [S, G, D]."""
        held = self.held[layer]
        held.keys, held.values = k.transpose(0, 1)[None].contiguous(), v.transpose(0, 1)[None].contiguous()


# A Target by name: where mypy checks type arguments, it does not see what points are called with.
class HFTarget(Target):
    """The target over one sequence: rows in, logits and residual streams out."""

    quantiser: Quantiser | None = None

    def __init__(self, checkpoint: str | Path, dtype: torch.dtype):
        read_rope(read_config(Path(checkpoint), TARGET))
        check_target(Path(checkpoint))
        self.model = _load(Path(checkpoint), dtype)
        self.config = self.model.config
        self.tap: TorchTap = ignore
        self.streams: dict[int, torch.Tensor] = {}
        self._hook()
        self.reset(ignore)

    @property
    def module(self) -> str:
        """The module that the target's maths comes from."""
        return type(self.model).__module__

    @property
    def eos(self) -> tuple[int, ...]:
        """The ids that end a sequence: generation_config.json decides, else config.json; an int or a list."""
        eos = self.model.generation_config.eos_token_id
        eos = self.config.eos_token_id if eos is None else eos
        return (eos,) if isinstance(eos, int) else tuple(eos or ())

    @property
    def embeddings(self) -> torch.Tensor:
        """The table of token embeddings, [V, H]."""
        weight: torch.Tensor = self.model.model.embed_tokens.weight
        return weight

    @property
    def head(self) -> torch.Tensor:
        """The table that the logits come from, [V, H]."""
        weight: torch.Tensor = self.model.lm_head.weight
        return weight

    def numbers(self) -> tuple[dict[str, float], Mapping[str, Any], float]:
        """Numbers of the maths by their names in config.json, the RoPE, and the scale of cos and sin."""
        body: Any = self.model.model  # transformers declares no types for the modules in one
        experts = body.layers[0].mlp.experts
        said = {"swiglu_alpha": experts.alpha, "swiglu_limit": experts.limit}
        said["rms_norm_eps"] = body.norm.variance_epsilon
        return said, self.config.rope_parameters or {}, body.rotary_emb.attention_scaling

    def roundings(self, drafter: torch.nn.Module) -> Roundings:
        """This target's other roundings and this drafter's."""
        return Roundings(self.model, drafter)

    @point
    def reset(self, tap: TorchTap) -> None:
        """Start a new sequence with an empty cache."""
        self.cache = TappedCache(tap, self.quantiser)
        self.watch(tap)

    def watch(self, tap: TorchTap) -> None:
        """Hand stages to this tap from now on."""
        self.tap = self.cache.tap = tap
        for layer in self.model.model.layers:
            layer.self_attn.parity_tap = tap

    def keep(self) -> Callable[[], None]:
        """What puts the cache back as it is now; steps never change cached tensors in place."""
        cache = self.cache
        rows = [(layer.keys, layer.values) for layer in cache.held]

        def put_back() -> None:
            self.cache = cache
            for layer, (keys, values) in zip(cache.held, rows, strict=True):
                layer.keys, layer.values = keys, values

        return put_back

    @point
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Feed ids [S] behind the cached rows; logits [S, V]. `streams[l]` holds in_of[l], [S, H], l = 0 … L."""
        with torch.no_grad():
            given = {CACHE: self.cache}
            logits: torch.Tensor = self.model(input_ids=ids[None], use_cache=True, **given).logits
            return logits[0]

    @point
    def taps(self, inputs: tuple[int, ...]) -> torch.Tensor:
        """The residual streams entering these layers, concatenated in this order: [S, T*H]."""
        return torch.cat([self.streams[layer] for layer in inputs], dim=-1)

    def rows(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's cached keys and values, [S, G, D] each."""
        return self.cache.rows(layer)

    def load(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Put back a layer's cached rows."""
        self.cache.load(layer, k, v)

    @point
    def crop(self, length: int) -> None:
        """Keep the first `length` rows of every layer."""
        for layer in range(self.config.num_hidden_layers):
            k, v = self.cache.rows(layer)
            self.cache.load(layer, k[:length], v[:length])

    def _hook(self) -> None:
        """Hook every stage of the target; names are built once here."""
        body = self.model.model
        _replace(body.embed_tokens, self, "target.embed")
        for number, layer in enumerate(body.layers):
            name = f"target.layers.{number}"
            layer.register_forward_pre_hook(self._keep_stream(number), with_kwargs=True)
            _replace(layer.input_layernorm, self, f"{name}.attn_in")
            _replace(layer.self_attn, self, f"{name}.attn_out")
            layer.self_attn.parity_attend = eager_attention_forward
            layer.mlp.router.register_forward_hook(self._route(name))
            _replace(layer.mlp, self, f"{name}.ffn_out")
            _replace(layer, self, f"{name}.out")
        body.norm.register_forward_pre_hook(self._keep_stream(len(body.layers)), with_kwargs=True)
        _replace(body.norm, self, "target.pre_head_hidden")

    def _keep_stream(self, number: int) -> Callable[..., None]:
        def hook(module: Any, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]) -> None:
            self.streams[number] = (args[0] if args else kwargs["hidden_states"])[0].clone()

        return hook

    def _route(self, name: str) -> Callable[..., Routed]:
        """Router logits and chosen experts; weights follow from what the tap returns."""

        def hook(module: Any, args: Any, output: Routed) -> Routed:
            own, _, experts = output
            logits = self.tap(f"{name}.router_logits", own)
            if not torch.equal(logits, own):  # a choice is made from the scores that the tap continues with
                experts = torch.topk(logits, experts.shape[-1], dim=-1).indices
            experts = self.tap(f"{name}.experts", experts)
            return logits, torch.softmax(logits.gather(1, experts), dim=1), experts

        return hook


def _replace(module: torch.nn.Module, target: HFTarget, stage: str) -> None:
    """Hand a module's output [1, S, H] over as [S, H] and continue with what comes back."""

    def hook(module: Any, args: Any, output: Any) -> Any:
        first, *rest = output if isinstance(output, tuple) else (output,)
        first = target.tap(stage, first[0])[None]
        return (first, *rest) if isinstance(output, tuple) else first

    module.register_forward_hook(hook)


def _load(checkpoint: Path, dtype: torch.dtype) -> GptOssForCausalLM:
    """Load the weights; MXFP4 experts come dequantised to bfloat16 whatever `dtype` asks, so float32 widens after.

    In bfloat16 the norms' weights stay float32, as transformers keeps them.
    """
    logging.disable_progress_bar()
    try:
        with replaced(GptOssForCausalLM, "_keys_to_ignore_on_load_unexpected", [SCALE]):
            model: GptOssForCausalLM = GptOssForCausalLM.from_pretrained(
                checkpoint, dtype=dtype, attn_implementation="eager", local_files_only=True, trust_remote_code=False
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UsageError(f"{checkpoint} cannot be loaded as GptOssForCausalLM: {str(error).splitlines()[0]}") from None
    if dtype == torch.float32:
        model.float()
    model.set_attn_implementation(ATTENTION)
    model.set_experts_implementation("eager")
    model.eval()
    return model
