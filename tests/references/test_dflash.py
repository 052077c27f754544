"""The DFlash oracle: its block over cached context against the equations written out, and the mask that is open."""

from __future__ import annotations

import math

import pytest
import torch

from parity.references.block import BlockLoop
from parity.references.dflash import DFlash
from parity.references.dflash_config import DFlashConfig
from parity.references.loop_state import State

K, LENGTH, V, H, N, G, D, THETA = 3, 9, 50, 24, 6, 2, 8, 1000.0
RAW = {
    "architectures": ["DFlashDraftModel"],
    "block_size": 8,
    "dflash_config": {"mask_token_id": 7, "target_layer_ids": [0, 2]},
    "hidden_size": H,
    "num_attention_heads": N,
    "num_key_value_heads": G,
    "head_dim": D,
    "num_hidden_layers": 2,
    "intermediate_size": 40,
    "rms_norm_eps": 1e-5,
    "vocab_size": V,
    "max_position_embeddings": 64,
    "rope_theta": THETA,
}
ROUNDING = 2.0**-18
"""Relative to the largest logit: some sixty float32 roundings of 2^-24 in a row."""


class Config:
    """Of a target that has no more than limits."""

    num_hidden_layers, max_position_embeddings, vocab_size = 4, 64, V


class Feed:
    """A target whose streams are given."""

    config, eos = Config(), ()

    def __init__(self, taps):
        self.streams, self.given = {}, taps

    def reset(self, tap):
        self.tap = tap

    def taps(self, layers):
        assert layers == (1, 3)
        return self.given


@pytest.fixture(scope="module")
def drafter():
    torch.manual_seed(0)
    model = DFlash(DFlashConfig.from_dict(RAW))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.3)
    model.share(torch.randn(V, H), torch.randn(V, H))
    return model.eval()


@pytest.fixture(scope="module")
def taps():
    return torch.randn(LENGTH, 2 * H, generator=torch.Generator().manual_seed(1))


def drafted(drafter, taps, prompt, token=11, mask=None):
    """Logits [K, V] of a round behind `prompt` rows of prefill; the rest of the taps are the round's context."""
    handed = {}

    def tap(stage, value):
        handed[stage] = value
        return value

    loop = BlockLoop(Feed(taps), drafter, K)
    loop.mask = mask or loop.mask
    loop.state = State(tap, 10, emitted=[token])
    loop.prefill_drafter(torch.zeros(prompt + 1, dtype=torch.long))
    loop.state.pending_taps = taps[prompt:]
    loop.draft()
    return handed["drafter.logits"].double()


def norm(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()


def turned(x, positions):
    """Pairs (i, i + D/2) of rows [W, heads, D] as complex numbers, turned by position * theta^(-2i/D)."""
    half = D // 2
    angle = positions[:, None].double() * THETA ** (-torch.arange(half).double() / half)
    pairs = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat((pairs.real, pairs.imag), -1)


def by_the_equations(drafter, taps, token=11, hidden_from=None):
    """The same in float64, row by row and head by head, with neither cache nor module."""
    w = {name: value.double() for name, value in drafter.state_dict().items()}
    context = norm(taps.double() @ w["fc.weight"].T, w["hidden_norm.weight"])
    x = drafter.embed_tokens.weight.double()[[token] + [7] * K]
    places = torch.arange(LENGTH + K + 1)
    for layer in range(2):
        own = {name.removeprefix(f"layers.{layer}."): value for name, value in w.items()}
        normed = norm(x, own["input_layernorm.weight"])
        rows = torch.cat((context, normed))
        q = norm((normed @ own["self_attn.q_proj.weight"].T).view(-1, N, D), own["self_attn.q_norm.weight"])
        k = norm((rows @ own["self_attn.k_proj.weight"].T).view(-1, G, D), own["self_attn.k_norm.weight"])
        v = (rows @ own["self_attn.v_proj.weight"].T).view(-1, G, D)
        q, k = turned(q, places[LENGTH:]), turned(k, places)
        mixed = torch.empty(K + 1, N, D, dtype=torch.double)
        for row in range(K + 1):
            seen = slice(0, LENGTH + row + 1 if hidden_from == "behind" else LENGTH + K + 1)
            for head in range(N):
                group = head // (N // G)
                weights = torch.softmax(k[seen, group] @ q[row, head] / math.sqrt(D), 0)
                mixed[row, head] = weights @ v[seen, group]
        x = x + mixed.flatten(1) @ own["self_attn.o_proj.weight"].T
        normed = norm(x, own["post_attention_layernorm.weight"])
        gate, up = (normed @ own[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate * torch.sigmoid(gate) * up) @ own["mlp.down_proj.weight"].T
    return norm(x[1:], w["norm.weight"]) @ drafter.lm_head.weight.double().T


def apart(one, other):
    return float((one - other).abs().max() / other.abs().max())


@pytest.mark.parametrize("prompt", [LENGTH - 1, 4])
@torch.no_grad()
def test_a_block_over_cached_context_is_what_the_equations_say(prompt, drafter, taps):
    assert apart(drafted(drafter, taps, prompt), by_the_equations(drafter, taps)) < ROUNDING


@torch.no_grad()
def test_a_causal_block_is_seen(drafter, taps):
    causal = by_the_equations(drafter, taps, hidden_from="behind")
    assert apart(drafted(drafter, taps, 4), causal) > 0.01

    def behind(slots, committed):
        return torch.arange(int(slots[-1]) + 1) <= slots[:, None]

    assert apart(drafted(drafter, taps, 4, mask=behind), causal) < ROUNDING


@torch.no_grad()
def test_the_context_and_the_last_token_matter(drafter, taps):
    right = drafted(drafter, taps, 4)
    changed = taps.clone()
    changed[0] += 1.0
    assert apart(drafted(drafter, changed, 4), right) > 1e-3
    assert apart(drafted(drafter, taps, 4, token=12), right) > 1e-3
