"""A small random EAGLE-3 drafter, a stand-in for the target, and the drafter's equations written out in float64."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch

from parity.references.chain import ChainLoop
from parity.references.drafter_config import Eagle3Config
from parity.references.eagle3 import Eagle3

RAW = {
    "hidden_size": 48,
    "target_hidden_size": 20,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 1,
    "intermediate_size": 56,
    "rms_norm_eps": 1e-5,
    "vocab_size": 90,
    "draft_vocab_size": 40,
    "max_position_embeddings": 128,
    "rope_theta": 500.0,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]},
}


def small_drafter(**changes) -> Eagle3:
    """Random weights, norm weights away from one, a vocabulary map with gaps."""
    torch.manual_seed(0)
    drafter = Eagle3(Eagle3Config.from_dict(RAW | changes)).eval()
    chosen = torch.randperm(drafter.config.vocab_size)[: drafter.config.draft_vocab_size].sort().values
    with torch.no_grad():
        for name, weight in drafter.named_parameters():
            weight.uniform_(0.3, 1.9) if "norm" in name else weight.normal_(0.0, 2.0 * weight.shape[-1] ** -0.5)
        drafter.d2t.copy_(chosen - torch.arange(len(chosen)))
    return drafter


ROUNDING = 64 * 2.0**-23
"""Relative L2 that float32 alone explains: sums of 100 terms, four layers and four recycled steps cost 6 to 25 ULP,
by the machine's order of summation; the smallest defect that is planted costs 10,000."""


def relative(found: torch.Tensor, true: torch.Tensor) -> float:
    """Relative L2 of all elements together; single ones near zero have no relative error worth a bound."""
    return float((found.double() - true.double()).norm() / true.double().norm())


@dataclass
class Passes:
    """A recorder that keeps stages and the rows of passes."""

    stages: dict = field(default_factory=dict)

    def __call__(self, stage, value):
        self.stages[stage] = value
        return value

    def rows(self, stage, value, first, total):
        """Rows in the order in which they come."""
        self.stages.setdefault(stage, []).append(value) if first else self.stages.update({stage: [value]})
        return value


def chain(drafter: Eagle3, k: int, tap) -> ChainLoop:
    """The loop over a target that never runs."""
    config = SimpleNamespace(num_hidden_layers=8, max_position_embeddings=128)
    loop = ChainLoop(SimpleNamespace(config=config, eos=(), reset=lambda tap: None), drafter, k)
    loop.begin(0, tap)
    return loop


def feed(loop: ChainLoop, tokens: torch.Tensor, taps: torch.Tensor, committed: int) -> torch.Tensor:
    """Prefill all but the last `committed` rows, then draft behind these: K ids."""
    rows = len(tokens) - 1 - committed
    loop.taps = lambda first, end: taps[first:end]
    loop.prefill_drafter(tokens[: rows + 1])
    loop.state.emitted, loop.state.pending_taps = tokens[-committed:].tolist(), taps[rows : rows + committed]
    return loop.draft()


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """RMSNorm."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def layer(
    w: dict[str, torch.Tensor],
    embed,
    hidden,
    heads: int = 6,
    groups: int = 2,
    theta: float = 500.0,
    norm_before_residual: bool = False,
) -> torch.Tensor:
    """The fusion layer over all rows from position 0, no cache: [S, H] and [S, H] to [S, H]."""
    both = torch.cat(
        (norm(embed, w["midlayer.input_layernorm.weight"]), norm(hidden, w["midlayer.hidden_norm.weight"])), -1
    )
    q, k, v = (both @ w[f"midlayer.self_attn.{name}_proj.weight"].T for name in "qkv")
    S, D = len(both), q.shape[-1] // heads
    angle = torch.arange(S)[:, None] * theta ** (-torch.arange(0, D, 2) / D)

    def turned(x: torch.Tensor) -> torch.Tensor:
        rows = torch.view_as_complex(torch.stack((x[..., : D // 2], x[..., D // 2 :]), -1).contiguous())
        rows = rows * torch.polar(torch.ones_like(angle), angle)[:, None]
        return torch.cat((rows.real, rows.imag), -1)

    q, k, v = turned(q.view(S, heads, D)), turned(k.view(S, groups, D)), v.view(S, groups, D)
    out = []
    for head in range(heads):
        group = head // (heads // groups)
        scores = (q[:, head] @ k[:, group].T / D**0.5).masked_fill(torch.ones(S, S).triu(1).bool(), -torch.inf)
        out.append(scores.softmax(-1) @ v[:, group])
    around = norm(hidden, w["midlayer.hidden_norm.weight"]) if norm_before_residual else hidden
    x = around + torch.cat(out, -1) @ w["midlayer.self_attn.o_proj.weight"].T
    y = norm(x, w["midlayer.post_attention_layernorm.weight"])
    gate, up, down = (w[f"midlayer.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return x + (torch.nn.functional.silu(y @ gate.T) * (y @ up.T)) @ down.T


def recomputed(
    drafter: Eagle3, tokens: torch.Tensor, taps: torch.Tensor, k: int, options: Collection[str] = ()
) -> tuple[list[int], torch.Tensor]:
    """K drafts and their logits [K, VD], every step recomputed over the whole context in float64.

    Args:
        options: the norms that the config asks for, as vLLM (llama_eagle3.py) and speculators (eagle3/core.py) have
            them.
    """
    w = {name: tensor.double() for name, tensor in drafter.state_dict().items() if tensor.is_floating_point()}
    taps = taps.double()
    if "norm_before_fc" in options:
        taps = norm(taps, w["input_norm.weight"])
    if "fc_norm" in options:
        each = taps.shape[-1] // 3
        taps = torch.cat([norm(taps[:, t * each : (t + 1) * each], w[f"fc_norm.{t}.weight"]) for t in range(3)], -1)
    ids, hidden = tokens[1:], taps @ w["fc.weight"].T
    drafts, logits = [], []
    for _ in range(k):
        around = "norm_before_residual" in options
        stream = layer(w, w["embed_tokens.weight"][ids], hidden, norm_before_residual=around)
        logits.append(norm(stream[-1], w["norm.weight"]) @ w["lm_head.weight"].T)
        choice = int(logits[-1].argmax())
        drafts.append(choice + int(drafter.d2t[choice]))
        ids = torch.cat((ids, torch.tensor(drafts[-1:])))
        recycled = norm(stream[-1:], w["norm.weight"]) if "norm_output" in options else stream[-1:]
        hidden = torch.cat((hidden, recycled))
    return drafts, torch.stack(logits)
