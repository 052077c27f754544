"""vLLM's rejection sampler, asked in vLLM's own environment: one process, arrays to and fro.

It draws by random numbers of its own (an exponential race), so that nothing is replayed: outcomes are counted.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np

from docs.ports.vllm_rule_pipe import received, send
from parity.errors import NotOffered

INSIDE = Path(__file__).with_name("vllm_rule_inside.py")
MOST = 5_000
"""Rounds that are asked at once."""


class VllmRule:
    """`rejection_sample` on logits behind the processors; `whole` is `RejectionSampler` with the settings instead."""

    own_numbers = True

    def __init__(self, whole=False, python=None):
        python = python or os.environ.get("PARITY_VLLM_PYTHON", ".venv-vllm/bin/python")
        environment = os.environ | {"VLLM_LOGGING_LEVEL": "ERROR"}
        environment.pop("PYTHONPATH", None)
        self.whole, pipe = whole, subprocess.PIPE
        self.process = subprocess.Popen([python, INSIDE], stdin=pipe, stdout=pipe, env=environment)

    def refuse(self, settings):
        if settings.rule != "residual":
            raise NotOffered("vLLM has no rule that samples and matches")
        if settings.min_p:
            raise NotOffered("vLLM refuses min-p beside speculation")

    def draw(self, settings, logits, numbers):
        return self.ask(settings, logits)

    def decide(self, settings, target_logits, draft_logits, drafts, uniforms):
        rounds = range(0, len(drafts), MOST)
        parts = [[one[first : first + MOST] for one in (target_logits, draft_logits, drafts)] for first in rounds]
        return np.concatenate([self.ask(settings, *part) for part in parts])

    def ask(self, settings, *arrays):
        """The answer of the other side, or its error."""
        asked = np.array([settings.temperature, settings.top_k, settings.top_p, self.whole], np.float64)
        send(self.process.stdin, asked, *arrays)
        ids, error = received(self.process.stdout)
        if error.size:
            raise RuntimeError(f"vLLM: {bytes(error).decode()}")
        return ids

    def __del__(self):
        self.process.stdin.close()  # which is its end
        self.process.wait()
        self.process.stdout.close()
