"""The target from its equations: Hugging Face's stages at rounding, float64 loops for its pieces, planted mistakes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from parity.errors import UsageError
from parity.golden.sources import package, reached
from parity.references import gpt_oss
from parity.references.capture import ignore
from parity.references.hf_target import HFTarget

IDS = torch.arange(80) * 7 % 1200
PIECES = [50, 5, 25]
"""Prefill, a verify round, and rows enough to leave the window behind."""
ROUNDING = 5e-6
"""Relative L2 of a float32 stage behind eight layers: measured up to 1.3e-6."""
CHECKPOINTS = ("target", "target-mxfp4")

Record = dict[str, torch.Tensor]


FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture(scope="module")
def tiny(three_layers):
    return three_layers


def recorded(feed: Callable[[torch.Tensor, gpt_oss.Tap], torch.Tensor], forced: Record | None = None) -> Record:
    """Every stage over all pieces; with `forced`, the run continues with those values in its own dtype."""
    seen: dict[str, list[torch.Tensor]] = {}

    def tap(stage: str, value: torch.Tensor) -> torch.Tensor:
        seen.setdefault(stage, []).append(value.clone())
        if forced is None:
            return value
        start = sum(map(len, seen[stage])) - len(value)
        return forced[stage][start : start + len(value)].to(value.dtype)

    for piece in IDS.split(PIECES):
        tap("logits", feed(piece, tap))
    return {stage: torch.cat(values) for stage, values in seen.items()}


def plain(checkpoint: Path, dtype: torch.dtype, forced: Record | None = None) -> Record:
    """The equations, driven a layer at a time from the disk."""
    files = gpt_oss.Checkpoint(checkpoint, dtype)
    outer = files.outer()
    caches: dict[int, gpt_oss.Cache | None] = {}

    @torch.no_grad()
    def feed(ids: torch.Tensor, tap: gpt_oss.Tap) -> torch.Tensor:
        hidden = gpt_oss.embed(outer["model.embed_tokens.weight"], ids, tap)
        for number in range(files.config.num_hidden_layers):
            weights = files.layer(number)
            hidden, caches[number] = gpt_oss.layer(files.config, number, weights, hidden, caches.get(number), tap)
        return gpt_oss.head(files.config, outer, hidden, tap)

    return recorded(feed, forced)


def hugging_face(target: HFTarget, forced: Record | None = None) -> Record:
    target.reset(ignore)

    def feed(ids: torch.Tensor, tap: gpt_oss.Tap) -> torch.Tensor:
        target.watch(tap)
        return target.forward(ids)

    return recorded(feed, forced)


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative L2."""
    return float((one.double() - other.double()).norm() / other.double().norm())


@pytest.fixture(scope="module")
def float32(tiny) -> dict[str, HFTarget]:
    return {name: HFTarget(tiny / name, torch.float32) for name in CHECKPOINTS}


@pytest.fixture(scope="module")
def truth(float32) -> dict[str, Record]:
    """Hugging Face's stages in float32."""
    return {name: hugging_face(target) for name, target in float32.items()}


@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_stage_is_hugging_faces_at_float32_rounding(name, dtype, truth, tiny):
    own, theirs = plain(tiny / name, dtype), truth[name]
    assert own.keys() == theirs.keys()
    for stage, value in theirs.items():
        assert own[stage].shape == value.shape
        assert own[stage].dtype == (dtype if value.is_floating_point() else value.dtype)
        limit = ROUNDING if value.is_floating_point() else 0.0
        assert apart(own[stage], value) <= limit, stage


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_every_bfloat16_stage_is_within_hugging_faces_own_noise(name, truth, tiny):
    """Each stage from the float32 inputs: the local floor. Measured: at most 1.04 of Hugging Face's error."""
    own = plain(tiny / name, torch.bfloat16, truth[name])
    theirs = hugging_face(HFTarget(tiny / name, torch.bfloat16), truth[name])
    for stage, value in truth[name].items():
        if value.is_floating_point():
            assert apart(own[stage], value) <= 1.2 * apart(theirs[stage], value), stage


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_weights_are_hugging_faces_bit_for_bit(name, tiny, float32):
    files, theirs = gpt_oss.Checkpoint(tiny / name, torch.float32), float32[name].model.state_dict()
    for number in range(files.config.num_hidden_layers):
        for part, value in files.layer(number).items():
            assert torch.equal(value, theirs.pop(f"model.layers.{number}.{part}")), part
    assert all(torch.equal(value, theirs.pop(part)) for part, value in files.outer().items()) and not theirs


def first_red(own: Record, theirs: Record) -> str:
    """The first stage, in the order of computation, that is more than rounding apart; '' where none is."""
    for stage, value in own.items():
        limit = ROUNDING if value.is_floating_point() else 0.0
        if value.shape != theirs[stage].shape or apart(value, theirs[stage]) > limit:
            return stage
    return ""


def llama_norm(x, weight, eps):
    """The mean square without eps' root in the right place."""
    return x / (x.square().mean(-1, keepdim=True).sqrt() + eps) * weight


def without_yarn(schedule):
    return lambda rope, size: schedule({**rope, "rope_type": "default"}, size)


def without_concentration(schedule):
    return lambda rope, size: (schedule(rope, size)[0], 1.0)


def interleaved(rotate):
    def turned(x, cos, sin):
        halves = torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)
        return rotate(halves, cos, sin)

    return turned


def window_by_one(allowed):
    return lambda positions, keys, window: allowed(positions, keys, window and window + 1)


def window_everywhere(allowed):
    return lambda positions, keys, window: allowed(positions, keys, window or 32)


def without_sinks(attend):
    return lambda q, k, v, sinks, seen: attend(q, k, v, torch.full_like(sinks, -math.inf), seen)


def scaled_sinks(attend):
    return lambda q, k, v, sinks, seen: attend(q, k, v, sinks * q.shape[-1] ** -0.5, seen)


def groups_by_turns(attend):
    """Head n of group n modulo G."""

    def mixed(q, k, v, sinks, seen):
        order = torch.arange(q.shape[1]).view(-1, k.shape[1]).T.flatten()
        return attend(q[:, order], k, v, sinks[order], seen)[:, order.argsort()]

    return mixed


def softmax_over_all(mixture):
    """Shares of a softmax over all experts."""

    def routed(config, weights, x, tap):
        def rescaled(stage, value):
            if stage != "ffn_out":
                return tap(stage, value)
            scores = gpt_oss.linear(weights, "mlp.router", x)
            chosen = scores.topk(config.num_experts_per_tok).indices
            return tap(stage, value * scores.softmax(-1).gather(1, chosen).sum(-1, keepdim=True))

        return mixture(config, weights, x, rescaled)

    return routed


def first_expert_only(mixture):
    return lambda config, weights, x, tap: mixture(replaced(config, num_experts_per_tok=1), weights, x, tap)


def replaced(config, **changes):
    return gpt_oss.Config(**{**vars(config), **changes})


def alpha_of_silu(expert):
    return lambda config, *rest: expert(replaced(config, swiglu_alpha=1.0), *rest)


def halves(expert):
    """Gate and up one behind the other."""

    def swapped(config, weights, number, x):
        order = torch.cat(
            (torch.arange(0, 2 * config.intermediate_size, 2), torch.arange(1, 2 * config.intermediate_size, 2))
        )
        names = ("mlp.experts.gate_up_proj", "mlp.experts.gate_up_proj_bias")
        return expert(config, {**weights, **{name: weights[name][..., order] for name in names}}, number, x)

    return swapped


def high_half_first(decode):
    return lambda blocks, scales, *dtype: decode((blocks << 4) | (blocks >> 4), scales, *dtype)


PLANTED = [
    ("schedule", without_yarn, "target", "target.layers.0.q"),
    ("schedule", without_concentration, "target", "target.layers.0.q"),
    ("rotate", interleaved, "target", "target.layers.0.q"),
    ("allowed", window_by_one, "target", "target.layers.0.attn_out"),
    ("allowed", window_everywhere, "target", "target.layers.1.attn_out"),
    ("attend", without_sinks, "target", "target.layers.0.attn_out"),
    ("attend", scaled_sinks, "target", "target.layers.0.attn_out"),
    ("attend", groups_by_turns, "target", "target.layers.0.attn_out"),
    ("mixture", softmax_over_all, "target", "target.layers.0.ffn_out"),
    ("mixture", first_expert_only, "target", "target.layers.0.experts"),
    ("expert", alpha_of_silu, "target", "target.layers.0.ffn_out"),
    ("expert", halves, "target", "target.layers.0.ffn_out"),
    ("rms_norm", lambda norm: llama_norm, "target", "target.layers.0.attn_in"),
    ("decode_mxfp4", high_half_first, "target-mxfp4", "target.layers.0.ffn_out"),
]


@pytest.mark.parametrize(("block", "mistake", "name", "first"), PLANTED, ids=[row[1].__name__ for row in PLANTED])
def test_a_planted_mistake_is_red_at_its_stage(block, mistake, name, first, truth, tiny, monkeypatch):
    monkeypatch.setattr(gpt_oss, block, mistake(getattr(gpt_oss, block)))
    assert first_red(plain(tiny / name, torch.float32), truth[name]) == first


@pytest.fixture(scope="module")
def small() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def drawn(small: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=small, dtype=torch.float64)


def test_attention_is_a_loop_over_queries_heads_and_keys(small):
    count, total, heads, groups, size, window = 3, 7, 6, 2, 4, 4
    q, k, v, sinks = (
        drawn(small, *s) for s in ((count, heads, size), (total, groups, size), (total, groups, size), (heads,))
    )
    positions = torch.arange(total - count, total)
    own = gpt_oss.attend(q, k, v, sinks, gpt_oss.allowed(positions, total, window))
    for row, position in enumerate(positions.tolist()):
        for n in range(heads):
            g = n // (heads // groups)
            keys = [p for p in range(total) if 0 <= position - p < window]
            powers = [math.exp(sum(float(a * b) for a, b in zip(q[row, n], k[p, g], strict=True)) / 2) for p in keys]
            below = sum(powers) + math.exp(float(sinks[n]))
            value = sum(power / below * v[p, g] for power, p in zip(powers, keys, strict=True))
            torch.testing.assert_close(own[row, n], value, rtol=1e-12, atol=1e-12)


def test_the_mixture_is_a_loop_over_rows_and_experts(small, tiny):
    config = replaced(
        gpt_oss.Config.read(tiny / "target"), intermediate_size=3, num_experts_per_tok=2, swiglu_limit=1.0
    )
    experts, hidden, inner = 4, 5, 3
    shapes = {"gate_up_proj": (hidden, 2 * inner), "gate_up_proj_bias": (2 * inner,), "down_proj": (inner, hidden)}
    shapes["down_proj_bias"] = (hidden,)
    weights = {f"mlp.experts.{name}": drawn(small, experts, *shape) for name, shape in shapes.items()}
    weights |= {"mlp.router.weight": drawn(small, experts, hidden), "mlp.router.bias": drawn(small, experts)}
    x = drawn(small, 6, hidden)
    own = gpt_oss.mixture(config, weights, x, lambda stage, value: value)
    for row, value in zip(x, own, strict=True):
        scores = [
            float(w @ row + b) for w, b in zip(weights["mlp.router.weight"], weights["mlp.router.bias"], strict=True)
        ]
        best = sorted(range(experts), key=lambda e: -scores[e])[:2]
        below = sum(math.exp(scores[e]) for e in best)
        total = torch.zeros(hidden, dtype=torch.float64)
        for e in best:
            both = row @ weights["mlp.experts.gate_up_proj"][e] + weights["mlp.experts.gate_up_proj_bias"][e]
            pairs = [(min(float(both[2 * i]), 1.0), max(-1.0, min(float(both[2 * i + 1]), 1.0))) for i in range(inner)]
            mid = torch.tensor(
                [(up + 1) * gate / (1 + math.exp(-1.702 * gate)) for gate, up in pairs], dtype=torch.float64
            )
            out = mid @ weights["mlp.experts.down_proj"][e] + weights["mlp.experts.down_proj_bias"][e]
            total += math.exp(scores[e]) / below * out
        torch.testing.assert_close(value, total, rtol=1e-12, atol=1e-12)


def test_yarn_of_the_published_models():
    """The ramp's bounds and the concentration of gpt-oss-20b; truncate is false there."""
    config = json.loads((FIXTURES / "configs/gpt-oss-20b/config.json").read_text())
    rope = config["rope_scaling"] | {"rope_theta": 150000.0}
    frequencies, concentration = gpt_oss.schedule(rope, 64)
    assert concentration == pytest.approx(1.3465736, abs=1e-7)
    for index, frequency in enumerate(frequencies.tolist()):
        plain = 150000.0 ** (-index / 32)
        slowed = min(max((index - 8.0928) / (17.3980 - 8.0928), 0.0), 1.0)
        assert frequency == pytest.approx(plain * (1 - slowed) + plain / 32 * slowed, rel=1e-4)


def test_a_block_of_mxfp4_by_hand():
    blocks = torch.zeros(1, 1, 1, 16, dtype=torch.uint8)
    blocks[0, 0, 0, :3] = torch.tensor([0x21, 0xF7, 0x98])
    values = gpt_oss.decode_mxfp4(blocks, torch.full((1, 1, 1), 128, dtype=torch.uint8))[0, :, 0]
    assert values[:6].tolist() == [1.0, 2.0, 12.0, -12.0, 0.0, -1.0] and not values[6:].any()


def test_mxfp4_in_bfloat16_is_what_float32_rounds_to():
    blocks, scales = torch.arange(256).to(torch.uint8).view(1, 1, 16, 16).expand(1, 256, -1, -1), torch.arange(256)
    scales = scales.to(torch.uint8)[None, :, None].expand(1, -1, 16)
    wide, narrow = gpt_oss.decode_mxfp4(blocks, scales), gpt_oss.decode_mxfp4(blocks, scales, torch.bfloat16)
    assert torch.equal(wide.to(torch.bfloat16).view(torch.int16), narrow.contiguous().view(torch.int16))


def test_the_equations_know_neither_transformers_nor_a_device():
    names = reached(["parity.references.gpt_oss"])
    assert "torch" in names
    assert not {name for name in names if package(name) in ("transformers", "parity.device")}


def test_the_references_of_hugging_faces_target_do_not_reach_it():
    """A golden of theirs would name its source, and the two would be one opinion: an import for a type is enough."""
    assert "parity.references.gpt_oss" not in reached(["parity.references.dump"])


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"sliding_window": None}, "sliding_window"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps"),
        ({"swiglu_limit": None}, "swiglu_limit"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"attention_bias": False}, "attention_bias"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"quantization_config": "mxfp4"}, "quantization_config"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_theta"),
    ],
)
def test_what_the_equations_do_not_have_is_refused_by_its_name(changes, name, tiny, tmp_path):
    config = json.loads((tiny / "target/config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=name):
        gpt_oss.Config.read(tmp_path)


def test_another_models_tensors_are_refused(tiny, tmp_path):
    for file in (tiny / "target").iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    config = json.loads((tiny / "target/config.json").read_text())
    fewer = config["num_hidden_layers"] - 1
    changes = {"num_hidden_layers": fewer, "layer_types": config["layer_types"][:fewer]}
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UsageError, match=rf"model.layers.{fewer}\.\S+ is not part of this architecture"):
        gpt_oss.Checkpoint(tmp_path, torch.float32)
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 96}))
    with pytest.raises(UsageError, match="has shape"):
        gpt_oss.Checkpoint(tmp_path, torch.float32).layer(0)
