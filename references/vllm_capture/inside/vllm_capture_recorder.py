"""Runs inside vLLM's own environment: a worker extension that writes down every step, one file each.

Imports torch and safetensors only. A step's file holds what vLLM computed, rows of all its requests in one
tensor, padding rows included; `parity.references.vllm_capture.rounds` sorts them into prompts, rounds and stages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

if TYPE_CHECKING:
    from parity.references.vllm_capture.inside import vllm_parts as parts


class Recorder:
    """Mixed into vLLM's worker (`worker_extension_cls`); its methods are called through `collective_rpc`."""

    model_runner: parts.Runner

    def start_recording(self, out: str, forced: str | None = None) -> None:
        """Record every step from now on to `out`; with `forced`, follow the choices of an earlier recording."""
        runner = self.model_runner
        self.steps = Steps(Path(out), Path(forced) if forced else None)
        _watch_target(runner.model, self.steps)
        _watch_drafter(runner.drafter.model, self.steps)
        _watch_runner(runner, self.steps)
        _watch_proposer(runner.drafter, self.steps)


class Steps:
    """The step at hand, and where it goes when it is whole."""

    def __init__(self, out: Path, forced: Path | None):
        self.out, self.forced, self.number = out, forced, 0
        self.tensors: dict[str, torch.Tensor] = {}
        self.requests: list[str] = []
        self.block_size = 0
        self.quiet = False
        self.drafting = -1

    @property
    def file(self) -> str:
        """The name of this step's file."""
        return f"step-{self.number:05d}.safetensors"

    def named(self, name: str) -> str:
        """A stage's name: a drafter that drafts step by step runs once a draft, its later passes are `chain.j`."""
        return name.replace("drafter.", f"chain.{self.drafting}.", 1) if self.drafting > 0 else name

    def keep(self, name: str, value: torch.Tensor) -> None:
        """A copy, on the host: fused additions work in place on what they are given."""
        if self.quiet:
            return
        name = self.named(name)
        if name in self.tensors:
            raise RuntimeError(f"{name} came twice in step {self.number}")
        self.tensors[name] = value.detach().to("cpu", copy=True).contiguous()

    def choice(self, name: str) -> torch.Tensor | None:
        """The same tensor of the recording to follow; None where none is followed."""
        if self.forced is None:
            return None
        with safe_open(self.forced / self.file, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
            return tensor

    def finish(self) -> None:
        """Write the step and begin the next one."""
        said = {"requests": " ".join(self.requests), "block_size": str(self.block_size)}
        save_file(self.tensors, self.out / self.file, said)
        self.tensors, self.number, self.drafting = {}, self.number + 1, -1


def _output(module: parts.Module, steps: Steps, name: str) -> None:
    """Keep a module's output, or the first of several."""
    module.register_forward_hook(
        lambda module, args, output: steps.keep(name, output[0] if isinstance(output, tuple) else output)
    )


def _layer(layer: parts.Module, steps: Steps, name: str) -> None:
    """A layer hands on its branch and the stream apart: (ffn_out, residual)."""

    def hook(module: object, args: object, output: tuple[torch.Tensor, torch.Tensor]) -> None:
        steps.keep(f"{name}.ffn_out", output[0])
        steps.keep(f"{name}.out", output[0] + output[1])

    layer.register_forward_hook(hook)


def _watch_target(model: parts.TargetModel, steps: Steps) -> None:
    body = model.model
    _output(body.embedding, steps, "target.embed")
    for number, layer in enumerate(body.layers):
        name = f"target.layers.{number}"
        _output(layer.input_layernorm, steps, f"{name}.attn_in")
        layer.attn.attn.register_forward_pre_hook(_projections(steps, name))
        _output(layer.attn, steps, f"{name}.attn_out")
        layer.mlp.router.register_forward_hook(_route(steps, name, layer.mlp.experts_per_token))
        _layer(layer, steps, name)
    _output(body.norm, steps, "target.pre_head_hidden")


def _projections(steps: Steps, name: str) -> Callable[[parts.Heads, tuple[torch.Tensor, ...]], None]:
    def hook(module: parts.Heads, args: tuple[torch.Tensor, ...]) -> None:
        for part, value in zip("qkv", args, strict=False):
            heads = module.num_heads if part == "q" else module.num_kv_heads
            steps.keep(f"{name}.{part}", value.reshape(len(value), heads, -1))

    return hook


def _route(steps: Steps, name: str, count: int) -> Callable[[object, object, torch.Tensor], torch.Tensor]:
    """Router logits and the experts that follow; forced ones are all that the logits leave over."""

    def hook(module: object, args: object, output: torch.Tensor) -> torch.Tensor:
        steps.keep(f"{name}.router_logits", output)
        steps.keep(f"{name}.experts", output.topk(count, dim=-1).indices)
        experts = steps.choice(f"{name}.experts")
        if experts is None:
            return output
        others = torch.ones_like(output, dtype=torch.bool).scatter(1, experts.to(output.device), False)
        return output.masked_fill(others, float("-inf"))

    return hook


def _watch_drafter(model: parts.DrafterModel, steps: Steps) -> None:
    def inputs(module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        steps.drafting += 1
        forced = steps.choice(steps.named("drafter.input_ids")) if steps.drafting else None
        if forced is not None:  # a chain's later pass: the draft before it is the followed recording's
            kwargs = kwargs | {"input_ids": forced.to(kwargs["input_ids"])}
        for part in ("input_ids", "positions"):
            steps.keep(f"drafter.{part}", kwargs[part])
        steps.keep("drafter.fc_out", kwargs["hidden_states"])
        return args, kwargs

    model.register_forward_pre_hook(inputs, with_kwargs=True)
    for number, layer in enumerate(model.model.layers):
        _output(layer.self_attn, steps, f"drafter.layers.{number}.attn_out")
        _layer(layer, steps, f"drafter.layers.{number}")
    _output(model.model.norm, steps, "drafter.normed")
    _output(model.logits_processor, steps, "drafter.logits")


def _watch_runner(runner: parts.Runner, steps: Steps) -> None:
    """The target's scores and what was sampled from them; and the drafts, which end a step."""
    sample, propose = runner._sample, runner.propose_draft_token_ids

    def sampled(logits: torch.Tensor, metadata: parts.Verified | None) -> parts.Sampled:
        output = sample(logits, metadata)
        steps.requests = list(runner.input_batch.req_ids)
        ends = runner.query_start_loc.gpu[1 : len(steps.requests) + 1] - 1
        steps.keep("verify.logits", logits)
        steps.keep("verify.rows", ends if metadata is None else metadata.logits_indices)
        forced = steps.choice("sampled")
        if forced is not None:
            output.sampled_token_ids = forced.to(output.sampled_token_ids)
        steps.keep("sampled", output.sampled_token_ids)
        return output

    def proposed(*args: Any, **kwargs: Any) -> torch.Tensor:
        drafts = propose(*args, **kwargs)
        steps.drafting = -1
        steps.keep("drafter.draft_tokens", drafts)
        forced = steps.choice("drafter.draft_tokens")
        # vLLM's head on every row: a prefill itself needs the last one's scores only.
        steps.quiet, every = True, steps.tensors["target.pre_head_hidden"].to(drafts.device)
        logits = runner.model.compute_logits(every)
        steps.quiet = False
        steps.keep("target.logits", logits)
        steps.finish()
        return drafts if forced is None else forced.to(drafts)

    runner._sample, runner.propose_draft_token_ids = sampled, proposed


def _watch_proposer(proposer: parts.Proposer, steps: Steps) -> None:
    """What each drafter row is: its request, whether it is masked or rejected, and its place in the cache."""
    propose, first_pass = proposer.propose, proposer.set_inputs_first_pass
    advance = proposer._update_positions_dependent_metadata

    def proposed(*args: Any, **kwargs: Any) -> torch.Tensor:
        steps.keep("drafter.taps", kwargs["target_hidden_states"])
        return propose(*args, **kwargs)

    def prepared(**kwargs: Any) -> tuple[int, torch.Tensor, parts.Rows]:
        steps.keep("target.starts", kwargs["cad"].query_start_loc)
        found = first_pass(**kwargs)
        count, sampled, cad = found
        steps.block_size = proposer.block_size
        steps.keep("drafter.starts", cad.query_start_loc)
        steps.keep("drafter.sampled_rows", sampled)
        steps.keep("drafter.slots", cad.slot_mapping)
        steps.keep("drafter.blocks", cad.block_table_tensor)
        masked, rejected = proposer.is_masked_token_mask, proposer.is_rejected_token_mask
        if masked is None:  # no parallel drafts: what was rejected lies behind the row that is sampled from
            last = torch.repeat_interleave(sampled, cad.query_start_loc.diff(), output_size=count)
            masked, rejected = torch.zeros_like(last, dtype=torch.bool), torch.arange(count, device=last.device) > last
        assert rejected is not None  # there are both masks or neither
        steps.keep("drafter.masked", masked[:count])
        steps.keep("drafter.rejected", rejected[:count])
        return found

    def advanced(positions: torch.Tensor, cad: parts.Rows, *args: Any, **kwargs: Any) -> object:
        found = advance(positions, cad, *args, **kwargs)
        steps.keep(f"chain.{steps.drafting + 1}.slots", cad.slot_mapping)
        return found

    proposer.propose, proposer.set_inputs_first_pass = proposed, prepared
    proposer._update_positions_dependent_metadata = advanced
