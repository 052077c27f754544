"""AWS's NKIPy example (gpt-oss with a P-EAGLE drafter) as a device: its own loop, and what a host sees of it.

    parity diff --device docs.ports.nkipy_gpt_oss:factory,root=CHECKOUT

CHECKOUT holds `examples/models/gpt_oss` of any commit that has the drafter. The example's `main` runs as it is and stops
where it has drafted, where it has verified and where it drafts again; stages are read, and written, at those calls and
at kernel launches.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoConfig

from docs.ports import nkipy_eager
from docs.ports.host_loop import HostLoop
from docs.ports.nkipy_eager import to_numpy, to_torch
from parity.seam import Description


def factory(target: Path, drafter: Path, k: int, precision: str, root: str = "", positions: int = 256) -> Port:
    """The device over a checkout of the example."""
    return Port(Path(root or os.environ["PARITY_NKIPY_EXAMPLE"]), target, drafter, k, precision, int(positions))


def example(root: Path) -> SimpleNamespace:
    """The example's modules, imported anew."""
    base = root / "examples/models/gpt_oss"
    for name in [n for n, m in sys.modules.items() if "examples/models/gpt_oss" in str(getattr(m, "__file__", ""))]:
        del sys.modules[name]
    with mock.patch.object(sys, "path", [str(base), *sys.path]):
        folder = next(name for name in ("peagle", "eagle") if (base / name).is_dir())
        loaded = [importlib.import_module(f"{folder}.{n}") for n in ("speculate", "tensor_preparation", "kernels.verify")]
        loaded.append(importlib.import_module("tensor_preparation"))
    modules = {n: m for n, m in sys.modules.items() if str(getattr(m, "__file__", "")).startswith(str(base))}
    return SimpleNamespace(speculate=loaded[0], drafter=loaded[1], target=loaded[3], modules=modules)


def shards(own: SimpleNamespace, target: Path, drafter: Path, dtype: torch.dtype) -> dict[str, Any]:
    """The weights as the example prepares them; experts that are not in MXFP4 pass for dequantised ones."""
    tensors = {name: one for file in target.glob("*.safetensors") for name, one in load_file(file).items()}
    blocks = SimpleNamespace(get=lambda n: None if n.endswith("_scales") else tensors[n.removesuffix("_blocks")])
    own.target.convert_moe_packed_tensors = lambda blocks, scales: blocks
    return {
        "shard_0.safetensors": own.target.build_shard(blocks, AutoConfig.from_pretrained(target), 0, 1, dtype),
        "drafter.safetensors": own.drafter.build(
            load_file(drafter / "model.safetensors").get, AutoConfig.from_pretrained(drafter), dtype
        ),
    }


class Port:
    """The five verbs: each lets the example's loop run as far as belongs to it."""

    chat_template = None  # the port is the example's tokenizer as well: it hands the prompt over and takes what is emitted

    def __init__(self, root: Path, target: Path, drafter: Path, k: int, precision: str, positions: int) -> None:
        self.k, self.precision, self.paths, self.positions = k, precision, (str(target), str(drafter)), positions
        self.configs = [AutoConfig.from_pretrained(path) for path in self.paths]
        dtype, self.loop = getattr(torch, precision), HostLoop(lambda: None)
        nkipy_eager.install(getattr(ml_dtypes, precision, np.float32))
        nkipy_eager.DeviceKernel.watch = self.launched
        own = example(root)
        self.main, self.modules, weights = own.speculate.main, tuple(own.modules), shards(own, target, drafter, dtype)
        names = {
            "torch": SimpleNamespace(**{**vars(torch), "bfloat16": dtype, "set_num_interop_threads": id}),
            "dist": SimpleNamespace(get_rank=int, get_world_size=lambda: 1, is_initialized=bool, barrier=self.timed, init_process_group=lambda: None),
            "AutoTokenizer": SimpleNamespace(from_pretrained=lambda _: self),
            "load_file": lambda path, device: weights[Path(path).name],
            "USE_NKI_RMSNORM": False,
        }
        for module in own.modules.values():
            vars(module).update({name: value for name, value in names.items() if name in vars(module)})
            module.print = lambda *words, **_: None
            for name in {"get_config", "get_eagle_config"} & set(vars(module)):
                setattr(module, name, self.sized(getattr(module, name)))
        drafters = "_DeviceDrafterAdapter", "DrafterCPU", "DrafterModel"
        outer = next(vars(own.speculate)[name] for name in drafters if name in vars(own.speculate))
        for kind, verb in (outer, "prefill"), (outer, "draft"), (own.speculate.SpeculativeGptOss, "verify"):
            if hasattr(kind, verb):
                setattr(kind, verb, self.watched(verb, getattr(kind, verb)))

    def sized(self, read):
        def config(*args, **named):
            made = read(*args, **named)
            made.max_seq_len = self.positions
            return made
        return config

    def timed(self) -> None:
        """Everything before the loop's barrier is a warm-up."""
        self.live = True

    def __call__(self, prompt, return_tensors):
        return {"input_ids": self.prompt}

    def decode(self, ids) -> str:
        self.emitted += ids
        return ""

    def watched(self, verb, call):
        """The loop's own calls: taps go in, tokens come out."""

        def stopping(model, *args):
            if verb == "verify":
                self.start = args[1]
                tokens, aux = call(model, *args)
                return self.loop.stop("verified", tokens), aux
            place = next(i for i, one in enumerate(args) if torch.is_tensor(one) and one.ndim == 3)
            if verb == "draft":
                self.loop.stop("drafting")
                self.rows = args[place].shape[1]
            self.drafted = self.rows + (args[2] if len(args) > 2 else 0) if self.rows else len(args[0])
            if self.live:
                taps = self.tap("drafter.taps", to_numpy(args[place][0]))
                args = [*args[:place], to_torch(taps)[None], *args[place + 1:]]
            tokens = call(model, *args)
            return self.loop.stop("drafted", tokens) if verb == "draft" else None

        return stopping

    def launched(self, kernel, inputs, outputs, launch) -> None:
        """One kernel launch."""
        caches = {n: t for n, t in inputs.items() if n.startswith("cache")}
        side = "drafter" if kernel.startswith("drafter") else "target"
        for name, one in caches.items():
            self.caches[f"kv.{side}.{re.findall('[0-9]+', one.name)[-1]}.{name[6]}"] = one
        layer = int(re.findall("[0-9]+", inputs["cache_k.must_alias_input"].name)[-1]) if len(caches) == 2 else None
        shown = self.live and kernel.startswith(("cte_layer", "verify_layer"))
        if shown and layer == 0:
            self.show("target.embed", inputs["x"])
        launch()
        out = outputs["output0"]
        if shown:
            self.show(f"target.layers.{layer}.out", out)
        if self.live and kernel == "cte_greedy_sampling":
            out.array[0] = self.tap("target.tokens", out.array[0].astype(np.int64))
        if kernel.startswith("tkg"):
            self.length = int(inputs["start_pos"].array[0]) + 1
        if kernel.startswith("cte_layer"):
            self.length = out.shape[1]
        if out.shape[-1] == self.configs[1].draft_vocab_size and self.rows:
            first = 0 if out.shape[1] == self.k else self.rows - 1
            self.show("drafter.logits", out, slice(first, first + self.k))

    def show(self, stage, tensor, rows=slice(None)):
        tensor.array[0, rows] = self.tap(stage, tensor.array[0, rows])

    def record_caches(self):
        lengths = {"target": self.length, "drafter": self.drafted}
        for stage, one in self.caches.items():
            length = lengths[stage.split(".")[1]]
            one.array[0, :length] = self.tap(stage, one.array[0, :length])
        for side in {stage.split(".")[1] for stage in self.caches}:
            self.tap(f"kv.{side}.length", np.array([lengths[side]]))

    def describe(self) -> Description:
        target, drafter = self.configs
        return Description(
            "nkipy-example", self.precision, target.num_hidden_layers, drafter.num_hidden_layers, self.k,
            self.positions, tuple(target.eos_token_id), modules=self.modules,
        )

    def prefill(self, prompt_ids, max_new_tokens, tap) -> int:
        self.loop.abandon()
        self.prompt, self.tap, self.live = np.array([prompt_ids]), tap, False
        self.emitted, self.caches, self.rows, self.drafted = [], {}, 0, 0
        self.loop = HostLoop(self.main)
        paths = ["--model", self.paths[0], "--draft-model", self.paths[1], "--draft-checkpoint", tempfile.mkdtemp()]
        argv = ["speculate", "-k", str(self.k), "-n", str(max_new_tokens), *paths]
        with mock.patch.object(sys, "argv", argv):
            self.loop.go(None, "drafting", "end")
        self.record_caches()
        return self.emitted[0]

    def draft(self, tap) -> np.ndarray:
        self.tap = tap
        return tap("drafter.draft_tokens", np.array(self.loop.go(None, "drafted")))

    def verify(self, draft_tokens, tap) -> np.ndarray:
        self.tap = tap
        return tap("verify.tokens", np.array(self.loop.go([int(i) for i in draft_tokens], "verified")))

    def commit(self, draft_tokens, verify_tokens, tap) -> np.ndarray:
        self.tap, self.emitted = tap, []
        self.loop.go([int(i) for i in verify_tokens], "drafting", "end")
        self.length = self.start + len(self.emitted)
        tap("accept.length", np.array([len(self.emitted)]))
        tap("accept.emitted", np.array(self.emitted))
        self.record_caches()
        return np.array(self.emitted)
