"""Checkpoint tensors to kernel weights: every matrix in x@W form, gate and up apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parity.device import mxfp4
from parity.device.checkpoint import FLOATS, INTEGERS, Tensors
from parity.device.config import Attention, TargetConfig
from parity.device.drafter_config import (
    DFlashConfig,
    DrafterConfig,
    DraftModelConfig,
    Eagle3Config,
    FusedConfig,
    PEagleConfig,
)
from parity.errors import UsageError

Weights = dict[str, np.ndarray]


class Reader:
    """Reads tensors of one checkpoint and keeps account of their names.

    Args:
        wrapped: what may stand before any name, as a wrapping module leaves it there.
    """

    def __init__(self, checkpoint: Tensors, wrapped: str = "") -> None:
        self._checkpoint, self._wrapped = checkpoint, wrapped
        self._read: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the checkpoint has this tensor."""
        return self._stored(name) in self._checkpoint.names

    def take(self, name: str, *shape: int, dtypes: tuple[str, ...] = FLOATS) -> np.ndarray:
        """The tensor, its shape and dtype checked."""
        name = self._stored(name)
        self._read.add(name)
        tensor: np.ndarray = self._checkpoint.tensor(name, shape, dtypes)
        return tensor

    def number(self, name: str) -> np.ndarray:
        """A tensor of one number, float32 [1]."""
        try:
            return self.take(name, 1).astype(np.float32)
        except UsageError:
            return self.take(name).astype(np.float32).reshape(1)

    def matrix(self, name: str, rows: int, columns: int) -> np.ndarray:
        """A linear layer's weight, stored [out, in], as [in, out]."""
        return self.settled(self.take(name, columns, rows).T)

    def settled(self, view: np.ndarray) -> np.ndarray:
        """A view of a tensor as a weight of its own."""
        weight: np.ndarray = self._checkpoint.settled(view)
        return weight

    def packed(self, name: str, experts: int, rows: int, columns: int) -> Any:
        """Matrices [E, in, out] that are stored as MXFP4."""
        if rows % mxfp4.BLOCK:
            raise self.refuse(f"{name}_blocks", f"has {rows} inputs, no multiple of MXFP4's block of {mxfp4.BLOCK}")
        shape = experts, columns, rows // mxfp4.BLOCK
        blocks = self.take(f"{name}_blocks", *shape, mxfp4.BLOCK // 2, dtypes=("uint8",))
        return self._checkpoint.decoded(blocks, self.take(f"{name}_scales", *shape, dtypes=("uint8",)))

    def skip(self, name: str) -> None:
        """Accept a tensor that nothing here needs."""
        self._read.add(self._stored(name))

    def refuse(self, name: str, why: str) -> UsageError:
        """The error to raise for this tensor."""
        return UsageError(f"{self._checkpoint.folder}: tensor '{name}' {why}.")

    def close(self) -> None:
        """UsageError where a tensor was never read."""
        self._checkpoint.refuse_surplus(self._read)

    def _stored(self, name: str) -> str:
        wrapped = self._wrapped + name
        return wrapped if wrapped in self._checkpoint.names else name


def target_weights(checkpoint: Tensors, config: TargetConfig) -> tuple[Weights, list[Weights]]:
    """The target's weights outside its layers, and those of its L layers."""
    reader = Reader(checkpoint)
    outer = {
        "embed": reader.take("model.embed_tokens.weight", config.vocab, config.hidden),
        "norm": reader.take("model.norm.weight", config.hidden),
        "head": reader.matrix("lm_head.weight", config.hidden, config.vocab),
    }
    layers = [_target_layer(reader, f"model.layers.{layer}.", config) for layer in range(config.layers)]
    reader.close()
    return outer, layers


def drafter_weights(checkpoint: Tensors, config: DrafterConfig, target: Weights) -> tuple[Weights, list[Weights]]:
    """The drafter's weights outside its layers, and those of its layers; the midlayer is layer 0.

    Args:
        target: the target's weights outside its layers, of which an EAGLE-3 drafter may share the embeddings and a
            DFlash drafter shares embeddings and head.
    """
    fused = isinstance(config, FusedConfig)
    reader = Reader(checkpoint, wrapped="model.") if fused else Reader(checkpoint)
    if isinstance(config, FusedConfig):
        outer, layers = _fused_weights(reader, config, target["embed"])
    elif isinstance(config, DFlashConfig):
        outer, layers = _block_weights(reader, config, target)
    else:
        outer, layers = _llama_weights(reader, config)
    reader.close()
    return outer, layers


def _llama_weights(reader: Reader, config: DrafterConfig) -> tuple[Weights, list[Weights]]:
    embeddings, head = reader.take("model.embed_tokens.weight", config.vocab, config.hidden), "lm_head.weight"
    if isinstance(config, DraftModelConfig) and config.tied:
        reader.skip(head)
        columns = reader.settled(embeddings.T)
    else:
        columns = reader.matrix(head, config.hidden, config.vocab)
    outer = {
        "embed": embeddings,
        "norm": reader.take("model.norm.weight", config.hidden),
        "head": columns,
        "d2t": np.zeros(config.vocab, np.int32),
    }
    return outer, [_llama_layer(reader, f"model.layers.{layer}.", config) for layer in range(config.layers)]


def _fused_weights(reader: Reader, config: FusedConfig, target: np.ndarray) -> tuple[Weights, list[Weights]]:
    chain = isinstance(config, Eagle3Config)
    taps = len(config.taps) * target.shape[1]
    outer = {
        "embed": _embeddings(reader, config, target if chain else None),
        "fc": reader.matrix("fc.weight", taps, config.hidden),
        "norm": reader.take("norm.weight", config.hidden),
        "head": reader.matrix("lm_head.weight", config.hidden, config.draft_vocab),
        "d2t": _draft_to_target(reader, config),
    }
    if isinstance(config, PEagleConfig):
        outer["mask_hidden"] = reader.take("mask_hidden", 1, 1, taps)
    outer |= _tap_norms(reader, config, target.shape[1])
    first = "layers.0." if reader.has("layers.0.hidden_norm.weight") else "midlayer."
    layers = [_drafter_layer(reader, layer, config, first) for layer in range(config.layers)]
    return outer, layers


def _block_weights(reader: Reader, config: DFlashConfig, target: Weights) -> tuple[Weights, list[Weights]]:
    outer = {
        "embed": target["embed"],
        "fc": reader.matrix("fc.weight", len(config.taps) * config.hidden, config.hidden),
        "hidden_norm": reader.take("hidden_norm.weight", config.hidden),
        "norm": reader.take("norm.weight", config.hidden),
        "head": target["head"],
        "d2t": np.zeros(config.vocab, np.int32),
    }
    return outer, [_normed_layer(reader, f"layers.{layer}.", config) for layer in range(config.layers)]


def _normed_layer(reader: Reader, prefix: str, config: DrafterConfig) -> Weights:
    """A layer that norms queries and keys by head."""
    norms = {f"{name}_norm": f"{prefix}self_attn.{name}_norm.weight" for name in "qk"}
    dim = config.attention.head_dim
    return _llama_layer(reader, prefix, config) | {name: reader.take(where, dim) for name, where in norms.items()}


def target_layer_weights(checkpoint: Tensors, config: TargetConfig, layer: int) -> Weights:
    """The weights of one of the target's layers; nothing else is read."""
    return _target_layer(Reader(checkpoint), f"model.layers.{layer}.", config)


def _target_layer(reader: Reader, prefix: str, config: TargetConfig) -> Weights:
    hidden, heads = config.hidden, config.attention.heads
    return {
        "input_norm": reader.take(f"{prefix}input_layernorm.weight", hidden),
        "post_norm": reader.take(f"{prefix}post_attention_layernorm.weight", hidden),
        "sinks": reader.take(f"{prefix}self_attn.sinks", heads),
        **_attention(reader, f"{prefix}self_attn.", config.attention, hidden, hidden, biases=True),
        **_scales(reader, f"{prefix}self_attn.", config.kv_format),
        "router": reader.matrix(f"{prefix}mlp.router.weight", hidden, config.experts),
        "router_bias": reader.take(f"{prefix}mlp.router.bias", config.experts),
        **_experts(reader, f"{prefix}mlp.experts.", config),
    }


def _tap_norms(reader: Reader, config: FusedConfig, width: int) -> Weights:
    """Weights of the norm before `fc`, of all taps [T * H of the target] or of each [T, H of the target]; or none."""
    count = len(config.taps)
    if config.norm_before_fc:
        return {"tap_norm": reader.take("input_norm.weight", count * width)}
    if config.fc_norm:
        return {"tap_norm": np.stack([reader.take(f"fc_norm.{tap}.weight", width) for tap in range(count)])}
    return {}


def _embeddings(reader: Reader, config: FusedConfig, shared: np.ndarray | None) -> np.ndarray:
    """The drafter's own, or the target's where it may share them and has none."""
    name = "embed_tokens.weight"
    if shared is None or reader.has(name):
        return reader.take(name, config.vocab, config.hidden)
    if shared.shape != (config.vocab, config.hidden):
        raise reader.refuse(name, f"is missing, and the target's {list(shared.shape)} are no {config.hidden} wide")
    return shared


def _drafter_layer(reader: Reader, layer: int, config: FusedConfig, first: str) -> Weights:
    if layer:
        return _llama_layer(reader, f"layers.{layer}.", config)
    hidden = config.hidden
    return _llama_layer(reader, first, config, 2 * hidden) | {
        "hidden_norm": reader.take(f"{first}hidden_norm.weight", hidden)
    }


def _llama_layer(reader: Reader, prefix: str, config: DrafterConfig, width: int | None = None) -> Weights:
    """A layer whose attention is `width` wide on its way in; H where None."""
    hidden, wide = config.hidden, config.intermediate
    return {
        "input_norm": reader.take(f"{prefix}input_layernorm.weight", hidden),
        "post_norm": reader.take(f"{prefix}post_attention_layernorm.weight", hidden),
        **_attention(reader, f"{prefix}self_attn.", config.attention, width or hidden, hidden),
        **_scales(reader, f"{prefix}self_attn.", config.kv_format),
        "gate": reader.matrix(f"{prefix}mlp.gate_proj.weight", hidden, wide),
        "up": reader.matrix(f"{prefix}mlp.up_proj.weight", hidden, wide),
        "down": reader.matrix(f"{prefix}mlp.down_proj.weight", wide, hidden),
    }


def _attention(
    reader: Reader, prefix: str, attention: Attention, width: int, hidden: int, biases: bool = False
) -> Weights:
    queries, keys = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    shapes = {"q": (width, queries), "k": (width, keys), "v": (width, keys), "o": (queries, hidden)}
    weights = {name: reader.matrix(f"{prefix}{name}_proj.weight", *shape) for name, shape in shapes.items()}
    if biases:
        weights |= {f"{name}_bias": reader.take(f"{prefix}{name}_proj.bias", shapes[name][1]) for name in shapes}
    return weights


def _scales(reader: Reader, prefix: str, kv_format: str) -> Weights:
    """What a layer's caches divide keys and values by, float32 [1]; 1 where the checkpoint has none.

    llm-compressor writes `k_scale` and `v_scale`, ModelOpt `k_proj.k_scale` and `v_proj.v_scale`.
    """
    found: Weights = {}
    for part in "kv":
        for name in (f"{prefix}{part}_scale", f"{prefix}{part}_proj.{part}_scale"):
            if not reader.has(name):
                continue
            if not kv_format:
                reader.skip(name)
                continue
            if f"{part}_scale" in found:
                raise reader.refuse(name, "is there under another name as well")
            found[f"{part}_scale"] = _positive(reader, name)
    if len(found) == 1:
        raise reader.refuse(f"{prefix}{next(iter(found))}", "is there without that of the layer's other cache")
    return found or (dict.fromkeys(("k_scale", "v_scale"), np.ones(1, np.float32)) if kv_format else {})


def _positive(reader: Reader, name: str) -> np.ndarray:
    scale = reader.number(name)
    if not 0 < scale[0] < np.inf:
        raise reader.refuse(name, f"is {scale[0]}, no positive number")
    return scale


def _experts(reader: Reader, prefix: str, config: TargetConfig) -> Weights:
    experts, hidden, wide = config.experts, config.hidden, config.intermediate
    read = reader.packed if reader.has(f"{prefix}gate_up_proj_blocks") else reader.take
    gate_up = read(f"{prefix}gate_up_proj", experts, hidden, 2 * wide)
    gate_up_bias = reader.take(f"{prefix}gate_up_proj_bias", experts, 2 * wide)
    # Even outputs are the gate, odd ones the up projection.
    return {
        "gate": reader.settled(gate_up[..., 0::2]),
        "up": reader.settled(gate_up[..., 1::2]),
        "gate_bias": gate_up_bias[:, 0::2].copy(),
        "up_bias": gate_up_bias[:, 1::2].copy(),
        "down": read(f"{prefix}down_proj", experts, wide, hidden),
        "down_bias": reader.take(f"{prefix}down_proj_bias", experts, hidden),
    }


def _draft_to_target(reader: Reader, config: FusedConfig) -> np.ndarray:
    """Target id minus draft id, int32 [VD]; zeros where the checkpoint has the full vocabulary and no `d2t`."""
    # A mask over the target vocabulary: d2t says the same and more.
    reader.skip("t2d")
    if not reader.has("d2t"):
        if config.draft_vocab != config.vocab:
            raise reader.refuse("d2t", f"is missing, but {config.draft_vocab} of {config.vocab} ids can be drafted")
        return np.zeros(config.draft_vocab, np.int32)
    offsets = reader.take("d2t", config.draft_vocab, dtypes=INTEGERS).astype(np.int64)
    ids = offsets + np.arange(config.draft_vocab)
    if ids.min() < 0 or ids.max() >= config.vocab:
        raise reader.refuse("d2t", f"leads outside the target's vocabulary of {config.vocab}")
    return offsets.astype(np.int32)


def convert(weights: Weights, array: Callable[[str, np.ndarray], Any]) -> dict[str, Any]:
    """The same names with each array moved to an engine."""
    return {name: array(name, value) for name, value in weights.items()}
