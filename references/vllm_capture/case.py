"""What a case asks of vLLM, and what the manifest says of who ran it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.errors import UsageError
from parity.golden.manifest import Producer
from parity.golden.provenance import producer
from parity.references.drafter_formats import read_drafter
from parity.references.vllm_capture.adapt import read_config

if TYPE_CHECKING:
    from parity.references.vllm_capture.dump import Request

NAME = "vllm"
OWN = ("adapt", "reordered", "rounds", "steps", "inside.vllm_capture_job", "inside.vllm_capture_recorder")
"""The files here that decide what the tensors are; the others carry them."""

MATHS = (
    "vllm.model_executor.models.gpt_oss",
    "vllm.model_executor.models.llama_eagle3",
    "vllm.v1.sample.rejection_sampler",
    "vllm.v1.spec_decode.llm_base_proposer",
)
"""Where vLLM computes; its version stands for their source."""


def admit(request: Request, length: int) -> None:
    """Refuse what does not fit, before any work is done.

    Raises:
        UsageError: a prompt too short or too long, no budget, or more drafts than the drafter was made for.
    """
    target, drafter = read_config(request.target), read_drafter(request.drafter)
    most = drafter.get("num_parallel_positions", request.k)
    if not 1 <= request.k <= most:
        raise UsageError(
            f"-k {request.k}: this drafter drafts 1 to {most} tokens (num_parallel_positions of its config)"
        )
    if length < 2:
        raise UsageError(f"a prompt of {length} tokens is too short: the drafter pairs each token with the one before")
    if request.max_new_tokens < 1:
        raise UsageError(f"--max-new-tokens {request.max_new_tokens}: at least 1 is needed")
    need = positions(length, request.max_new_tokens, request.k)
    context = min(target["max_position_embeddings"], drafter["max_position_embeddings"])
    if need > context:
        raise UsageError(
            f"a prompt of {length} tokens, {request.max_new_tokens} new tokens and the drafts behind them need {need} "
            f"positions in vLLM; the context has {context} (max_position_embeddings)"
        )


def positions(length: int, budget: int, k: int) -> int:
    """Positions that vLLM needs: it still verifies and drafts in the step that ends a generation."""
    return length + budget + 2 * k + 2


def eos(target: Path) -> list[int]:
    """The ids that end a generation: generation_config.json decides, else config.json; an int or a list."""
    path = target / "generation_config.json"
    found = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
    found = read_config(target).get("eos_token_id") if found is None else found
    return [found] if isinstance(found, int) else list(found or ())


def describe(result: dict[str, Any], request: Request, adapted: str) -> Producer:
    """Who computed: vLLM's version and platform, and what was changed in the checkpoints for it."""
    package = __name__.rpartition(".")[0]
    notes = {"drafter changed for vLLM": adapted, "prompts at a time": str(request.batch)}
    own = producer(NAME, [f"{package}.{name}" for name in OWN], (), request.threads, result["versions"], notes)
    modules = tuple(sorted((*own.modules, *MATHS)))
    return own.model_copy(update={"modules": modules, "platform": result["platform"]})
