"""A server that answers as vLLM does, out of a golden: its bfloat16 numbers and its text; tests spoil it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from parity.endpoint.truth import logits
from parity.gates.acceptance_counts import log_softmax
from parity.golden.views import TrustedGolden
from tests.endpoint.serving import Handler

Spoil = Callable[[dict[str, Any], dict[str, Any]], Any]


def as_it_is(answer: dict[str, Any], asked: dict[str, Any]) -> Any:
    return answer


class Pretended:
    """`spoil(answer, request)` changes an answer; `metrics` the page of counters, from the true one.

    Attributes:
        rounds, accepted, emitted: counted so far.
    """

    def __init__(
        self, golden: TrustedGolden, spoil: Spoil = as_it_is, metrics: Callable[[str], str] = str, **info: Any
    ):
        self.golden, self.spoil, self.metrics, self.info = golden, spoil, metrics, info
        self.cases = golden.manifest.case.prompts
        self.experts: Callable[[int], np.ndarray] | None = None  # of a prompt's rows, [rows, layers, X]
        self.rounds = self.accepted = self.emitted = 0
        self.scores = [log_softmax(logits(golden, one, "bfloat16").astype("float32")) for one in range(len(self.cases))]

    def __call__(self, handler: Handler, body: bytes) -> None:
        if handler.path == "/v1/models":
            handler.send_json({"object": "list", "data": [{"id": "tiny", "owned_by": "vllm"}]})
        elif handler.path == "/metrics":
            handler.send(self.metrics(self.page()).encode())
        elif handler.path == "/server_info" and self.info:
            handler.send_json(self.info)
        elif handler.path == "/v1/completions":
            asked = json.loads(body)
            handler.send_json(self.spoil(self.answer(asked), asked))
        else:
            handler.send_json({"error": "not found"}, 403 if "server" in handler.path else 404)

    def page(self) -> str:
        """As Prometheus has it."""
        k = self.golden.manifest.case.k
        counted = {"num_drafts": self.rounds, "num_draft_tokens": self.rounds * k, "num_accepted_tokens": self.accepted}
        lines = [f'vllm:spec_decode_{name}_total{{engine="0"}} {value}.0' for name, value in counted.items()]
        return "\n".join([*lines, f'vllm:generation_tokens_total{{engine="0"}} {self.emitted}.0', ""])

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        ids, budget = tuple(asked["prompt"]), asked["max_tokens"]
        number = next(n for n, one in enumerate(self.cases) if ids[: len(one.ids)] == one.ids)
        case = self.cases[number]
        tokens = (*case.ids, *case.generated.emitted)[len(ids) :][:budget]
        self.emitted += len(tokens)
        if len(ids) == len(case.ids):
            self.rounds += len(case.generated.acceptance_length)
            self.accepted += sum(case.generated.accepted_drafts)
        choice: dict[str, Any] = {"token_ids": list(tokens), "prompt_token_ids": list(ids)}
        choice["finish_reason"] = "length" if len(tokens) == budget else "stop"
        if "prompt_logprobs" in asked:
            rows = self.scores[number]
            follow = [{str(token): {"logprob": float(rows[at, token])}} for at, token in enumerate(ids[1:])]
            choice["prompt_logprobs"] = [None, *follow]
            if self.experts is not None:
                data = self.experts(number).astype(np.int32)
                choice["routed_experts"] = base64.b64encode(data.tobytes()).decode()
        return {"choices": [choice], "usage": {"prompt_tokens": len(ids), "completion_tokens": len(tokens)}}
