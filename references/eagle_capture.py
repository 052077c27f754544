"""SafeAILab/EAGLE's own EAGLE-3 drafter (`eagle/model/cnets.py`, `Model`) as a reference, from a checkout of theirs.

The target, its verification and the loop are this project's; every draft comes out of `topK_genrate` with `top_k = 1`,
the chain. Hooks hand the stages over and put back what the tap returns. A draft is forced through `logsoftmax`, which
does nothing but rank: the logits recorded are those that the model computed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from parity.errors import UsageError
from parity.golden.sources import package, reached
from parity.references import dump, runs
from parity.references.checkpoint import read_state
from parity.references.drafter_config import Eagle3Config
from parity.references.drafter_formats import read_drafter
from parity.references.drafter_layers import KVCache
from parity.references.drafting import refuse_family
from parity.references.hf_target import HFTarget
from parity.references.loop import SpeculativeLoop
from parity.references.points import point

NAME = "references: hf_target + eagle (SafeAILab/EAGLE)"
OWN = {"parity.references.eagle3", "parity.references.chain", "parity.references.parallel"}
"""What the references would draft with; here it is imported and not used."""

NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


@dataclass(frozen=True)
class Request(runs.Request):
    """`checkout` is a checkout of SafeAILab/EAGLE, which a dump needs."""

    checkout: Path | None = None


def dump_golden(request: Request) -> Path:
    """Dump a golden whose drafter stages are the official implementation's.

    Raises:
        UsageError: no such implementation in the checkout, or one of the request's parts does not fit it.
    """
    refuse_family(request.drafter, "eagle", ("eagle-3",))
    cnets = official(request.checkout)
    theirs = {name for name in reached([cnets.__name__]) if package(name) == package(cnets.__name__)}
    modules = dump.own_modules(__name__) - OWN
    computed = runs.Computed(NAME, partial(load_loop, cnets), modules | theirs, drafting={__name__, *theirs})
    return dump.dump(request, computed)


def official(checkout: Path | None) -> ModuleType:
    """Import `eagle.model.cnets` from a checkout.

    Raises:
        UsageError: none is named, it is not there, or cannot be imported with the packages of this environment.
    """
    if checkout is None:
        raise UsageError("--reference eagle needs a checkout of SafeAILab/EAGLE: name it with --checkout")
    path = checkout.resolve()
    if not (path / "eagle/model/cnets.py").is_file():
        raise UsageError(f"--checkout {checkout}: no eagle/model/cnets.py; a checkout of SafeAILab/EAGLE is needed")
    with _importing(path):
        try:
            found = import_module("eagle.model.cnets")
        except Exception as error:
            raise UsageError(f"--checkout {checkout} cannot be imported: {type(error).__name__}: {error}") from None
    if not Path(str(found.__file__)).is_relative_to(path):
        raise UsageError(
            f"--checkout {checkout}: a package `eagle` from elsewhere is imported already: {found.__file__}"
        )
    return found


@contextmanager
def _importing(path: Path) -> Iterator[None]:
    sys.path.insert(0, str(path))
    try:
        yield
    finally:
        sys.path.remove(str(path))


def load_loop(cnets: ModuleType, target: Path, drafter: Path, dtype: torch.dtype, k: int) -> OfficialLoop:
    """The speculative loop with the official drafter."""
    oracle = HFTarget(target, dtype)
    return OfficialLoop(oracle, OfficialDrafter(cnets, drafter, dtype, k, oracle.embeddings), k)


class OfficialDrafter(nn.Module):
    """The official `Model` with a checkpoint's weights, made as their `EaModel` makes it.

    Raises:
        UsageError: the checkpoint asks for what the official implementation does not have.
    """

    config: Eagle3Config

    def __init__(self, cnets: ModuleType, checkpoint: Path, dtype: torch.dtype, k: int, embeddings: torch.Tensor):
        super().__init__()
        self.config = _supported(Eagle3Config.read(checkpoint), checkpoint)
        try:
            self.model = cnets.Model(_settings(checkpoint), total_tokens=k + 1, depth=k - 1, top_k=1)
        except Exception as error:
            raise UsageError(f"{checkpoint}: the official EAGLE refuses it ({type(error).__name__}: {error})") from None
        if self.config.vocab_size == self.config.draft_vocab_size:
            del self.model.d2t, self.model.t2d
        state = read_state(checkpoint, self.model.state_dict(), optional=("embed_tokens.weight",))
        self.model.load_state_dict({"embed_tokens.weight": embeddings.detach()} | state)
        self.model.to(dtype).eval()
        self.model.init_tree()

    def to_target(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """Draft ids to target ids, by the official buffers."""
        d2t = getattr(self.model, "d2t", None)
        return draft_ids if d2t is None else draft_ids + d2t[draft_ids]


def _settings(checkpoint: Path) -> SimpleNamespace:
    """config.json as the official code reads it: its config class is made for transformers 4; 5 renames RoPE's keys."""
    unsaid = {"pretraining_tp": 1, "pad_token_id": None, "hidden_act": "silu", "rope_scaling": None}
    return SimpleNamespace(**unsaid | read_drafter(checkpoint))


def _supported(config: Eagle3Config, checkpoint: Path) -> Eagle3Config:
    needs = {
        "head_dim": (config.head_dim, config.hidden_size // config.num_heads),
        **{name: (getattr(config, name), False) for name in NORMS},
        "number of taps": (len(config.tap_inputs or (0, 0, 0)), 3),
        "rope_type": (config.rope["rope_type"], "default"),
    }
    for name, (asked, has) in needs.items():
        if asked != has:
            raise UsageError(f"{checkpoint}: {name} is {asked}; the official EAGLE knows {has} only")
    return config


class OfficialLoop(SpeculativeLoop[HFTarget, OfficialDrafter]):
    """The loop whose drafts are the official implementation's; rows stand as in `parity.references.chain.ChainLoop`."""

    def __init__(self, target: HFTarget, drafter: OfficialDrafter, k: int):
        super().__init__(target, drafter, k)
        model = drafter.model
        model.register_forward_pre_hook(self._begin_pass, with_kwargs=True)
        model.midlayer.register_forward_pre_hook(self._enter_layer, with_kwargs=True)
        model.midlayer.self_attn.register_forward_hook(partial(self._leave, "layers.0.attn_out"))
        model.midlayer.mlp.register_forward_hook(partial(self._leave, "layers.0.ffn_out"))
        model.midlayer.register_forward_hook(partial(self._leave, "layers.0.out"))
        model.norm.register_forward_hook(partial(self._leave_head, "pre_head_hidden"))
        model.lm_head.register_forward_hook(partial(self._leave_head, "logits"))
        model.logsoftmax.register_forward_hook(self._choose)

    @point
    @torch.no_grad()
    def prefill_drafter(self, prompt: torch.Tensor) -> None:
        """The drafter over the prompt, from an empty cache."""
        model = self.drafter.model
        model.reset()
        model.reset_kv()
        self.prompt = prompt
        self.drafts: list[int] = []
        self.end, self.total = 0, len(prompt) - 1
        taps = self.tap("drafter.taps", self.taps(0, len(prompt) - 1))
        _, model.stable_kv = model(taps[None], input_ids=prompt[None, 1:], use_cache=True)
        self._keep_rows(len(prompt) - 1)

    @point
    @torch.no_grad()
    def draft(self) -> torch.Tensor:
        """K ids [K] out of `topK_genrate`, behind the C committed rows with their true taps."""
        model, committed = self.drafter.model, len(self.state.pending_taps)
        self.drafts = []
        self.end, self.total = 0, committed + self.k - 1
        taps = self.tap("drafter.taps", self.state.pending_taps)
        model.stable_kv = (self.state.cache.rows[0],)
        known = torch.cat((self.prompt, torch.tensor(self.state.emitted)))
        drafted: torch.Tensor = model.topK_genrate(taps[None], known[None], head=None, logits_processor=None)[0][0, 1:]
        if drafted.tolist() != [int(one) for one in self.drafts]:
            raise UsageError(f"the official EAGLE drafted {drafted.tolist()}, its steps chose {self.drafts}: no chain")
        self._keep_rows(self.state.draft_length + committed)
        return drafted

    def _keep_rows(self, length: int) -> None:
        """Its `stable_kv` holds the committed rows; a chain's rows are in tensors of their own."""
        cache = self.state.cache = KVCache()
        k, v = self.drafter.model.stable_kv[0]
        cache.rows = {0: (k, v)}
        if k.shape[2] != length:
            raise UsageError(f"the official EAGLE keeps {k.shape[2]} rows, {length} are committed")
        self.state.draft_length = length

    def _rows(self, stage: str, value: torch.Tensor) -> torch.Tensor:
        """Hand over rows [1, n, …] of this pass."""
        return self.state.tap.rows(f"drafter.{stage}", value[0], self.first, self.total)[None]

    def _begin_pass(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A pass begins: `first` is where its rows stand in the round."""
        ids = kwargs["input_ids"]
        self.first, self.end = self.end, self.end + ids.shape[1]
        return args, kwargs | {"input_ids": self._rows("input_ids", ids)}

    def _enter_layer(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the layer is given: positions, cached rows, and the hidden as `fc` or the row before left it."""
        positions, past = kwargs["position_ids"], kwargs["past_key_value"]
        start = 0 if past is None else past[0].shape[2]
        self._rows("slots", (start + torch.arange(positions.shape[1]))[None])
        changed = {
            "position_ids": self._rows("positions", positions),
            "hidden_states": self._rows("fc_out", kwargs["hidden_states"]),
        }
        return args, kwargs | changed

    def _leave(self, stage: str, module: nn.Module, args: Any, output: Any) -> Any:
        """The output, or the first of several."""
        if isinstance(output, tuple):
            return (self._rows(stage, output[0]), *output[1:])
        return self._rows(stage, output)

    def _leave_head(self, stage: str, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        """One row [1, …] of the K that draft."""
        return self.state.tap.rows(f"drafter.{stage}", output, len(self.drafts), self.k)

    def _choose(self, module: nn.Module, args: Any, ranked: torch.Tensor) -> torch.Tensor:
        """The draft of one step; another one than its own comes first where the tap says so."""
        own = self.drafter.to_target(ranked.topk(1).indices[:, 0])  # of two equal ones the one that it takes itself
        draft = self.state.tap.rows("drafter.draft_tokens", own, len(self.drafts), self.k)
        self.drafts.append(int(draft))
        if torch.equal(draft, own):
            return ranked
        ids = self.drafter.to_target(torch.arange(ranked.shape[-1]))
        return torch.where(ids == draft, 0.0, -torch.inf).to(ranked.dtype)[None]
