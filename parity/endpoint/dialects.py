"""How to ask each kind of server for a greedy completion of token ids, and where its answer holds what.

Formats: vLLM `entrypoints/openai/completion/protocol.py`; SGLang `managers/io_struct.py`, native `/generate`; llama.cpp
`tools/server/README.md`, native `/completion`; TensorRT-LLM `serve/openai_protocol.py`, which refuses unknown fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.endpoint.answers import (
    LENGTH,
    STOP,
    Completion,
    count,
    expert_ids,
    field,
    logprob,
    same_prompt,
    token_ids,
    told_all,
)
from parity.errors import Inconclusive

Ids = Sequence[int]


@dataclass(frozen=True)
class Dialect:
    """One kind of server.

    Attributes:
        owner: what `/v1/models` says owns its models.
        path: where completions are asked for.
        body: of a request: model, prompt ids, budget, and whether the prompt is scored.
        read: the answer to these ids.
    """

    name: str
    owner: str
    path: str
    body: Callable[[str, Ids, int, bool], dict[str, Any]]
    read: Callable[[Any, Ids], Completion]


def _openai(model: str, ids: Ids, budget: int, scored: bool) -> dict[str, Any]:
    return {"model": model, "prompt": list(ids), "max_tokens": budget, "temperature": 0}


def _vllm(model: str, ids: Ids, budget: int, scored: bool) -> dict[str, Any]:
    more = {"return_token_ids": True} | ({"prompt_logprobs": 0} if scored else {})
    return _openai(model, ids, budget, scored) | more


def _read_vllm(answer: Any, ids: Ids) -> Completion:
    choice = field(answer, "choices", 0)
    same_prompt(ids, field(choice, "prompt_token_ids"), field(answer, "usage", "prompt_tokens"))
    scores = field(choice, "prompt_logprobs")
    return Completion(
        told_all(token_ids(field(choice, "token_ids"), "token ids"), field(answer, "usage", "completion_tokens")),
        str(field(choice, "finish_reason")),
        prompt=None if scores is None else _keyed(scores, ids),
        experts=expert_ids(field(choice, "routed_experts")),
    )


def _keyed(scores: Any, ids: Ids) -> np.ndarray:
    """Per position an object from token ids to their log-probabilities, that of the prompt's own token among them.

    Raises:
        Inconclusive: there are not as many as the prompt has tokens, or of other tokens.
    """
    if not isinstance(scores, list) or len(scores) != len(ids):
        said = len(scores) if isinstance(scores, list) else "no list of"
        raise Inconclusive(f"the server returns {said} prompt log-probabilities for {len(ids)} tokens")
    there = [one if one is None else field(one, str(token)) for one, token in zip(scores, ids, strict=True)]
    for position, (one, kept) in enumerate(zip(scores, there, strict=True)):
        if one is not None and kept is None:
            raise Inconclusive(f"the server scores another token than the one that was sent at position {position}")
    return np.array([logprob(one if one is None else field(one, "logprob")) for one in there])


def _trtllm(model: str, ids: Ids, budget: int, scored: bool) -> dict[str, Any]:
    return _openai(model, ids, budget, scored) | {"detokenize": False}  # else it returns a text and no ids


def _read_trtllm(answer: Any, ids: Ids) -> Completion:
    choice = field(answer, "choices", 0)
    same_prompt(ids, None, field(answer, "usage", "prompt_tokens"))
    tokens = told_all(token_ids(field(choice, "token_ids"), "token ids"), field(answer, "usage", "completion_tokens"))
    return Completion(tokens, str(field(choice, "finish_reason")))


def _sglang(model: str, ids: Ids, budget: int, scored: bool) -> dict[str, Any]:
    body = {"input_ids": list(ids), "sampling_params": {"temperature": 0, "max_new_tokens": budget}}
    more = {"return_logprob": True, "logprob_start_len": 0, "return_routed_experts": True}
    return body | (more if scored else {})


def _read_sglang(answer: Any, ids: Ids) -> Completion:
    meta = field(answer, "meta_info")
    scores = field(meta, "input_token_logprobs")
    seen = None
    if isinstance(scores, list):
        seen = [field(one, 1) for one in scores]
    same_prompt(ids, seen, field(meta, "prompt_tokens"))
    return Completion(
        told_all(token_ids(field(answer, "output_ids"), "token ids"), field(meta, "completion_tokens")),
        str(field(meta, "finish_reason", "type")),
        prompt=None if seen is None else np.array([logprob(field(one, 0)) for one in scores]),
        experts=expert_ids(field(meta, "routed_experts")),
        rounds=count(field(meta, "spec_verify_ct")),
        accepted=count(field(meta, "spec_num_correct_drafts")),
        drafted=count(field(meta, "spec_num_proposed_drafts")),
    )


def _llamacpp(model: str, ids: Ids, budget: int, scored: bool) -> dict[str, Any]:
    # Without samplers in front of it, temperature 0 takes the best; its own defaults penalise repetition.
    greedy = {"temperature": 0, "samplers": ["temperature"], "repeat_penalty": 1.0, "cache_prompt": False}
    return {"prompt": list(ids), "n_predict": budget, "return_tokens": True, **greedy}


def _read_llamacpp(answer: Any, ids: Ids) -> Completion:
    same_prompt(ids, None, field(answer, "tokens_evaluated"))
    tokens = told_all(token_ids(field(answer, "tokens"), "token ids"), field(answer, "tokens_predicted"))
    accepted = count(field(answer, "timings", "draft_n_accepted"))
    if accepted is not None and accepted >= max(len(tokens), 1):
        raise Inconclusive(f"the server counts {accepted} accepted drafts among {len(tokens)} tokens")
    return Completion(
        tokens,
        {"eos": STOP, "limit": LENGTH}.get(str(field(answer, "stop_type")), str(field(answer, "stop_type"))),
        # Every round emits one token that is no draft, and the prompt's pass the first one.
        rounds=None if accepted is None else len(tokens) - 1 - accepted,
        accepted=accepted,
        drafted=count(field(answer, "timings", "draft_n")),
    )


DIALECTS = {
    one.name: one
    for one in (
        Dialect("vllm", "vllm", "/v1/completions", _vllm, _read_vllm),
        Dialect("sglang", "sglang", "/generate", _sglang, _read_sglang),
        Dialect("llamacpp", "llamacpp", "/completion", _llamacpp, _read_llamacpp),
        Dialect("trtllm", "tensorrt_llm", "/v1/completions", _trtllm, _read_trtllm),
    )
}
"""By name; the first one's fields are asked of a server that is none of them."""
