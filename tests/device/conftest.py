"""Random checkpoints with every axis different, and the pair that most tests load."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from parity import device
from parity.batching import perform
from parity.rounds import forced_rounds
from parity.stages import declared
from parity.trace import ForcingTrace, Trace

YARN = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "beta_fast": 16.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 16,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
TARGET = {
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "hidden_size": 64,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 20,
    "num_hidden_layers": 6,
    "intermediate_size": 32,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 7,
    "vocab_size": 77,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-5,
    "rope_parameters": YARN,
    "eos_token_id": None,
}
DRAFTER = {
    "model_type": "llama",
    "hidden_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "num_hidden_layers": 3,
    "intermediate_size": 56,
    "vocab_size": 77,
    "draft_vocab_size": 50,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-5,
    "rope_theta": 800.0,
    "rope_scaling": LLAMA3,
    "ptd_token_id": 70,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 4]},
    "num_parallel_positions": 8,
}
FEW_KV = {"num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 80}
FEW_KV_DRAFTER = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 80, "draft_vocab_size": 40}
"""Changes by which two and four ranks share out both models; four are more than the kv heads."""
Tensors = dict[str, np.ndarray]


def _draw(seed: int, shapes: dict[str, tuple[int, ...]]) -> Tensors:
    random = np.random.default_rng(seed)
    return {name: _one(random, name, shape).astype(ml_dtypes.bfloat16) for name, shape in shapes.items()}


def _one(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = random.standard_normal(shape)
    if "norm" in name:
        return 1 + 0.1 * values
    if "embed" in name or "sinks" in name or "mask_hidden" in name:
        return values
    if name.endswith("gate_up_proj_bias"):
        return 4 * values  # near the clamp, on both of its sides
    return 0.1 * values if name.endswith("bias") else values * shape[-1] ** -0.5


def target_tensors(config: dict, seed: int = 1) -> Tensors:
    """Random bfloat16 tensors under Hugging Face's names."""
    hidden, wide, experts = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        sizes = {"q": (queries, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, queries)}
        shapes |= {f"{prefix}self_attn.{name}_proj.weight": size for name, size in sizes.items()}
        shapes |= {f"{prefix}self_attn.{name}_proj.bias": size[:1] for name, size in sizes.items()}
        shapes[f"{prefix}self_attn.sinks"] = (config["num_attention_heads"],)
        shapes |= {f"{prefix}mlp.router.weight": (experts, hidden), f"{prefix}mlp.router.bias": (experts,)}
        for name, into, out in (("gate_up_proj", hidden, 2 * wide), ("down_proj", wide, hidden)):
            shapes[f"{prefix}mlp.experts.{name}"] = (experts, into, out)
            shapes[f"{prefix}mlp.experts.{name}_bias"] = (experts, out)
    shapes |= {"model.norm.weight": (hidden,), "lm_head.weight": (config["vocab_size"], hidden)}
    return _draw(seed, shapes)


def drafter_tensors(config: dict, target: dict, seed: int = 2) -> Tensors:
    """Random bfloat16 tensors under the hub's names; d2t leads to every odd id first."""
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    taps = 3 * target["hidden_size"]
    shapes = {
        "embed_tokens.weight": (config["vocab_size"], hidden),
        "fc.weight": (hidden, taps),
        "mask_hidden": (1, 1, taps),
        "norm.weight": (hidden,),
        "lm_head.weight": (config["draft_vocab_size"], hidden),
        "midlayer.hidden_norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix, width = (f"layers.{layer}.", hidden) if layer else ("midlayer.", 2 * hidden)
        shapes |= {f"{prefix}{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        for name, out, into in (("q", queries, width), ("k", keys, width), ("v", keys, width), ("o", hidden, queries)):
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = (out, into)
        for name, out, into in (("gate", wide, hidden), ("up", wide, hidden), ("down", hidden, wide)):
            shapes[f"{prefix}mlp.{name}_proj.weight"] = (out, into)
    ids = np.r_[1 : config["vocab_size"] : 2, 0 : config["vocab_size"] : 2][: config["draft_vocab_size"]]
    mask = np.isin(np.arange(config["vocab_size"]), ids)
    return _draw(seed, shapes) | {"d2t": np.sort(ids) - np.arange(len(ids)), "t2d": mask}


def save(folder: Path, config: dict, tensors: Tensors, shards: int = 1, generation: dict | None = None) -> Path:
    """Write one checkpoint folder, in one file or in shards with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    names = sorted(tensors)
    files = {f"model-{part}.safetensors": names[part::shards] for part in range(shards)}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in files.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(scope="session")
def builders() -> ModuleType:
    """This module: the configs, and the functions that draw their tensors."""
    return sys.modules[__name__]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target and a drafter folder, random weights."""
    root = tmp_path_factory.mktemp("pair")
    return (
        save(root / "target", TARGET, target_tensors(TARGET)),
        save(root / "drafter", DRAFTER, drafter_tensors(DRAFTER, TARGET)),
    )


@pytest.fixture(scope="session")
def load(pair: tuple[Path, Path]) -> Callable[..., object]:
    """`parity.device.load` on the pair, in float32 unless told otherwise."""

    def loaded(k: int = 4, precision: str = "float32", **options: object) -> object:
        return device.load(*pair, k, precision=precision, **options)

    return loaded


@pytest.fixture(scope="session")
def few_kv(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., object]:
    """`parity.device.load` on a pair with two kv heads, fewer than four ranks, in float32."""
    root, target, drafter = tmp_path_factory.mktemp("few"), TARGET | FEW_KV, DRAFTER | FEW_KV_DRAFTER
    folders = (
        save(root / "target", target, target_tensors(target)),
        save(root / "drafter", drafter, drafter_tensors(drafter, target)),
    )
    return lambda **options: device.load(*folders, 4, **{"precision": "float32"} | options)


@pytest.fixture(scope="session")
def traced() -> Callable[[object], Trace]:
    """Prefill of 24 tokens and two rounds of a pipeline, every stage recorded."""

    def trace(pipeline: object) -> Trace:
        says = pipeline.describe()
        names = declared(says.num_layers, says.num_drafter_layers)
        seen = ForcingTrace(names, lambda round_, stage: None, forced=())
        perform(pipeline, forced_rounds(pipeline, np.arange(1, 25), 12, seen, 2))
        return seen

    return trace


@pytest.fixture
def checkpoints(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Writes a pair into this test's folder: changes of the configs, and functions that edit the tensors."""

    def write(
        target: dict | None = None,
        drafter: dict | None = None,
        edit_target: Callable[[Tensors], object] = lambda tensors: None,
        edit_drafter: Callable[[Tensors], object] = lambda tensors: None,
        **layout: object,
    ) -> tuple[Path, Path]:
        target, drafter = TARGET | (target or {}), DRAFTER | (drafter or {})
        first, second = target_tensors(target), drafter_tensors(drafter, target)
        edit_target(first), edit_drafter(second)
        return save(tmp_path / "target", target, first, **layout), save(tmp_path / "drafter", drafter, second)

    return write


@pytest.fixture(scope="session")
def prompts() -> list[np.ndarray]:
    """Prompts longer than the window and than YaRN's original context, and a very short one."""
    random = np.random.default_rng(3)
    return [random.integers(0, 77, length) for length in (2, 19, 40)]


@pytest.fixture(scope="session")
def plain(load: Callable[..., object], prompts: list[np.ndarray]) -> list[list[int]]:
    """What greedy decoding by the target alone emits: 30 tokens a prompt."""
    return [load().decode_plain(prompt, 30) for prompt in prompts]


@pytest.fixture
def edited(tiny, tmp_path):
    """A tiny drafter, EAGLE-3's by default, with another config or other tensors; "gone" leaves a key out."""

    def edit(change=lambda tensors: tensors, source="eagle3", whole=None, **config):
        folder = tmp_path / source
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tiny / source, folder)
        raw = json.loads((folder / "config.json").read_text()) | config
        raw = {key: value for key, value in raw.items() if value != "gone"}
        (folder / "config.json").write_text(json.dumps(whole(raw) if whole else raw))
        save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")
        return folder

    return edit
