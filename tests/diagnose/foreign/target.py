"""The gpt-oss target: packed projections, experts run over their own rows."""

from __future__ import annotations

import numpy as np

from tests.diagnose.foreign.arithmetic import Precision, read, rotate, turns, unit, yarn
from tests.diagnose.foreign.attention import attend, pack, store


class Target:
    """Rows to hidden states. `cache` is [L, 2, G, P, D]; `streams` holds what left each layer, [S, H]."""

    def __init__(self, folder, rounded: Precision, positions: int, faults: frozenset[str]):
        self.config, self.w = read(folder)
        self.rounded, self.faults, config = rounded, faults, self.config
        self.layers, self.eps = config["num_hidden_layers"], config["rms_norm_eps"]
        self.groups, self.dim = config["num_key_value_heads"], config["head_dim"]
        self.each = config["num_attention_heads"] // self.groups
        self.cache = store(self.layers, self.groups, positions, self.dim)
        schedule = yarn(config, truncated="yarn_truncated" in faults)
        self.turn = turns(schedule, positions)
        self.turn_k = turns((schedule[0], 1.0), positions) if "yarn_scale_on_q_only" in faults else self.turn
        self.packed = [self._pack(layer) for layer in range(self.layers)]
        self.streams: list[np.ndarray] = []
        self.middles: list[np.ndarray] = []

    def _name(self, layer: int, rest: str) -> np.ndarray:
        return self.w[f"model.layers.{layer}.{rest}"]

    def _pack(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        weight, bias = (
            pack([self._name(layer, f"self_attn.{p}_proj.{kind}") for p in "qkv"], self.groups, self.dim)
            for kind in ("weight", "bias")
        )
        if "v_bias_lost" in self.faults:
            bias[:, -1] = 0
        if "gqa_modulo" in self.faults:  # the queries are dealt to the groups one by one
            for part in (weight, bias):
                heads = part[:, : self.each].reshape(self.groups * self.each, *part.shape[2:])
                part[:, : self.each] = heads.reshape(self.each, self.groups, *part.shape[2:]).swapaxes(0, 1)
        return weight.reshape(-1, weight.shape[-1]).T.copy(), bias.reshape(-1)

    def norm(self, x: np.ndarray, weight: str) -> np.ndarray:
        """RMSNorm with its weight in float32."""
        return self.rounded(unit(x, self.eps) * self.w[weight])

    def run(self, ids: np.ndarray, start: int, tap) -> np.ndarray:
        """Ids [S] from row `start` on to the hidden before the head [S, H]."""
        x = self.rounded.show(tap, "target.embed", self.w["model.embed_tokens.weight"][ids])
        self.streams, self.middles = [], []
        for layer in range(self.layers):
            x = self._attention(layer, x, start, tap)
            self.middles.append(x)
            self.streams.append(x := self._experts(layer, x, tap))
        return self.rounded.show(tap, "target.pre_head_hidden", self.norm(x, "model.norm.weight"))

    def head(self, hidden: np.ndarray) -> np.ndarray:
        """Hidden [S, H] to logits [S, V]."""
        return self.rounded(hidden @ self.w["lm_head.weight"].T)

    def _attention(self, layer: int, x: np.ndarray, start: int, tap) -> np.ndarray:
        at, S, G, R = f"target.layers.{layer}", len(x), self.groups, self.each
        normed = self.rounded.show(tap, f"{at}.attn_in", self.norm(x, f"model.layers.{layer}.input_layernorm.weight"))
        weight, bias = self.packed[layer]
        qkv = self.rounded(normed @ weight + bias).reshape(S, G, R + 2, self.dim)
        late = "verify_position_late" in self.faults and start > 0
        where = np.arange(start, start + S) + late
        q = rotate(qkv[:, :, :R].reshape(S, G * R, self.dim), self.turn[where])
        if "gqa_modulo" in self.faults:
            q = q.reshape(S, G, R, self.dim).swapaxes(1, 2).reshape(S, G * R, self.dim)
        q = self.rounded.show(tap, f"{at}.q", q)
        k = self.rounded.show(tap, f"{at}.k", rotate(qkv[:, :, R], self.turn_k[where]))
        v = self.rounded.show(tap, f"{at}.v", qkv[:, :, R + 1])
        self.cache[layer, :, :, start : start + S] = np.stack((k, v)).transpose(0, 2, 1, 3)
        q = q.reshape(S, R, G, self.dim).swapaxes(1, 2) if "gqa_modulo" in self.faults else q.reshape(S, G, R, self.dim)
        rows, allowed = self.cache[layer, :, :, : start + S], self._allowed(layer, start, S)
        mixed = attend(q, rows, allowed, self.dim**-0.5, self.rounded, self._sinks(layer))
        if "gqa_modulo" in self.faults:
            mixed = mixed.reshape(S, G, R, self.dim).swapaxes(1, 2).reshape(S, -1)
        out = mixed @ self._name(layer, "self_attn.o_proj.weight").T + self._name(layer, "self_attn.o_proj.bias")
        return self.rounded(x + self.rounded.show(tap, f"{at}.attn_out", self.rounded(out)))

    def _allowed(self, layer: int, start: int, rows: int) -> np.ndarray:
        back = np.arange(start, start + rows)[:, None] - np.arange(start + rows)
        window = self.config["sliding_window"] + ("window_inclusive" in self.faults)
        slides = self.config["layer_types"][layer] == "sliding_attention"
        if "window_on_odd_layers" in self.faults:
            slides = layer % 2 == 1
        return (back >= 0) & (back < window) if slides else back >= 0

    def _sinks(self, layer: int) -> np.ndarray:
        sinks = self._name(layer, "self_attn.sinks")
        if "sink_times_scale" in self.faults:
            sinks = sinks * np.float32(self.dim**-0.5)
        if "sinks_dealt" in self.faults:
            return sinks.reshape(self.each, self.groups).T
        if "gqa_modulo" in self.faults:  # a sink belongs to its query head, whatever group that reads
            return sinks.reshape(self.each, self.groups).T
        return sinks.reshape(self.groups, self.each)

    def _experts(self, layer: int, x: np.ndarray, tap) -> np.ndarray:
        at, many = f"target.layers.{layer}", self.config["num_experts_per_tok"]
        which = "input_layernorm" if "ffn_norm_weights" in self.faults else "post_attention_layernorm"
        normed = self.norm(x, f"model.layers.{layer}.{which}.weight")
        logits = normed @ self._name(layer, "mlp.router.weight").T + self._name(layer, "mlp.router.bias")
        logits = self.rounded.show(tap, f"{at}.router_logits", self.rounded(logits))
        chosen = np.argsort(-logits, axis=-1, kind="stable")[:, :many]
        chosen = np.asarray(tap(f"{at}.experts", chosen.astype(np.int64)))
        scores = np.exp(np.take_along_axis(logits, chosen, axis=-1) - logits.max(axis=-1, keepdims=True))
        share = self.rounded(scores / scores.sum(axis=-1, keepdims=True))
        if "mix_in_id_order" in self.faults:
            chosen = np.sort(chosen, axis=-1)
        mixed = self._mix(layer, normed, chosen, share)
        out = self.rounded.show(tap, f"{at}.ffn_out", self.rounded(mixed))
        return self.rounded.show(tap, f"{at}.out", self.rounded(x + out))

    def _mix(self, layer: int, normed: np.ndarray, chosen: np.ndarray, share: np.ndarray) -> np.ndarray:
        """Experts [S, X] over rows [S, H], weighted by `share` [S, X]: [S, H]."""
        mixed = np.zeros_like(normed)
        for expert in np.unique(chosen):
            row, place = np.nonzero(chosen == expert)
            mixed[row] += self._expert(layer, int(expert), normed[row], share[row, place][:, None])
        return mixed

    def _expert(self, layer: int, expert: int, rows: np.ndarray, share: np.ndarray) -> np.ndarray:
        weight, bias = (self._name(layer, f"mlp.experts.{p}")[expert] for p in ("gate_up_proj", "gate_up_proj_bias"))
        both = self.rounded(rows @ weight + bias)
        gate, up = both[:, ::2], both[:, 1::2]
        if "halves_for_interleaved" in self.faults:
            gate, up = np.split(both, 2, axis=1)
        limit = np.float32(self.config["swiglu_limit"])
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        alpha = 1.0 if "swish_alpha_one" in self.faults else self.config["swiglu_alpha"]
        one = 0 if "up_without_one" in self.faults else 1
        inner = self.rounded((up + one) * gate / (1 + np.exp(-np.float32(alpha) * gate)))
        weight, bias = (self._name(layer, f"mlp.experts.{p}")[expert] for p in ("down_proj", "down_proj_bias"))
        if "down_bias_after_mix" in self.faults:
            return self.rounded(inner @ weight) * share + bias
        return self.rounded(inner @ weight + bias) * share
