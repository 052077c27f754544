"""The P-EAGLE drafter: one pass over committed and masked rows."""

from __future__ import annotations

import numpy as np

from tests.diagnose.foreign.arithmetic import Precision, llama3, read, rotate, turns, unit
from tests.diagnose.foreign.attention import attend, pack, store


class Drafter:
    """Rows to drafts. `cache` is [L, 2, G, P, D]; `turn` may be replaced before a pass."""

    def __init__(self, folder, rounded: Precision, positions: int, faults: frozenset[str]):
        self.config, self.w = read(folder)
        self.rounded, self.faults, config = rounded, faults, self.config
        self.layers, self.eps = config["num_hidden_layers"], config["rms_norm_eps"]
        self.groups, self.dim = config["num_key_value_heads"], config["head_dim"]
        self.each = config["num_attention_heads"] // self.groups
        self.inputs = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
        self.placeholder = config["ptd_token_id"]
        self.cache = store(self.layers, self.groups, positions, self.dim)
        self.turn = turns(llama3(config), positions)
        self.packed = [self._pack(layer) for layer in range(self.layers)]

    def _name(self, layer: int, rest: str) -> np.ndarray:
        return self.w[f"layers.{layer}.{rest}" if layer else f"midlayer.{rest}"]

    def _pack(self, layer: int) -> np.ndarray:
        parts = [self._name(layer, f"self_attn.{p}_proj.weight") for p in "qkv"]
        packed = pack(parts, self.groups, self.dim)
        return packed.reshape(-1, packed.shape[-1]).T.copy()

    def norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """RMSNorm, rounded before its weight multiplies."""
        return self.rounded(self.rounded(unit(x, self.eps)) * weight)

    def fuse(self, taps: np.ndarray, masked: int) -> np.ndarray:
        """Taps [C, TH] and `masked` learnt ones through `fc`: [C + masked, H]."""
        mask = self.w["mask_hidden"][0]
        if "mask_repeats_last_tap" in self.faults:
            mask = taps[-1:]
        return self.rounded(np.concatenate((taps, mask.repeat(masked, axis=0))) @ self.w["fc.weight"].T)

    def run(self, ids, fused, positions, slots, committed: int, tap) -> np.ndarray:
        """Rows [W] to the residual stream [W, H]; keys and values go to `slots`."""
        embedded, x = self.w["embed_tokens.weight"][ids], fused
        allowed = self._allowed(slots, committed)
        for layer in range(self.layers):
            into = self._name(layer, "input_layernorm.weight")
            entering = self._fusion(embedded, x) if layer == 0 else self.norm(x, into)
            if layer == 0 and "fusion_residual_embed" in self.faults:
                x = embedded
            x = self._layer(layer, x, entering, positions, slots, allowed, tap)
        return x

    def draft(self, rows: np.ndarray, tap) -> np.ndarray:
        """Residual stream [K, H] to K target ids."""
        show = self.rounded.show
        hidden = show(tap, "drafter.pre_head_hidden", self.norm(rows, self.w["norm.weight"]))
        logits = show(tap, "drafter.logits", self.rounded(hidden @ self.w["lm_head.weight"].T))
        best = logits.argmax(axis=-1)
        ids = self.w["d2t"][best] + (0 if "d2t_absolute" in self.faults else best)
        return np.asarray(tap("drafter.draft_tokens", ids.astype(np.int64)))

    def _fusion(self, embedded: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        names = ["input_layernorm.weight", "hidden_norm.weight"]
        if "fusion_norms_swapped" in self.faults:
            names.reverse()
        halves = [self.norm(x, self._name(0, n)) for x, n in zip((embedded, hidden), names, strict=True)]
        return np.concatenate(halves[::-1] if "fusion_halves_swapped" in self.faults else halves, axis=-1)

    def _layer(self, layer, x, entering, positions, slots, allowed, tap) -> np.ndarray:
        at, W, G, R = f"drafter.layers.{layer}", len(x), self.groups, self.each
        qkv = self.rounded(entering @ self.packed[layer]).reshape(W, G, R + 2, self.dim)
        q = self.rounded(rotate(qkv[:, :, :R].reshape(W, G * R, self.dim), self.turn[positions]))
        k = self.rounded(rotate(qkv[:, :, R], self.turn[positions]))
        self.cache[layer, 0, :, slots], self.cache[layer, 1, :, slots] = k, qkv[:, :, R + 1]
        rows = self.cache[layer, :, :, : slots[0] + W]
        size = self.dim
        if "head_dim_from_hidden" in self.faults:
            size = self.config["hidden_size"] // self.config["num_attention_heads"]
        mixed = attend(q.reshape(W, G, R, self.dim), rows, allowed, size**-0.5, self.rounded)
        out = self.rounded(mixed @ self._name(layer, "self_attn.o_proj.weight").T)
        x = self.rounded(x + self.rounded.show(tap, f"{at}.attn_out", out))
        out = self.rounded.show(tap, f"{at}.ffn_out", self._mlp(layer, x))
        return self.rounded.show(tap, f"{at}.out", self.rounded(x + out))

    def _mlp(self, layer: int, x: np.ndarray) -> np.ndarray:
        normed = self.norm(x, self._name(layer, "post_attention_layernorm.weight"))
        gate, up = (self.rounded(normed @ self._name(layer, f"mlp.{p}_proj.weight").T) for p in ("gate", "up"))
        if "mlp_gate_up_swapped" in self.faults:
            gate, up = up, gate
        inner = self.rounded(self.rounded(gate / (1 + np.exp(-gate))) * up)
        return self.rounded(inner @ self._name(layer, "mlp.down_proj.weight").T)

    def _allowed(self, slots: np.ndarray, committed: int) -> np.ndarray:
        """Which of the cache rows up to the last slot each row sees, bool [W, T]."""
        seen = np.arange(slots[0] + len(slots))
        allowed = seen <= slots[:, None]
        behind = slots[0] + committed
        if "masked_rows_blind" in self.faults:
            allowed &= (seen < behind) | (seen == slots[:, None])
        if "masked_rows_open" in self.faults:
            allowed[committed:] = True
        if "drafter_window" in self.faults:
            allowed &= slots[:, None] - seen < 32
        return allowed
