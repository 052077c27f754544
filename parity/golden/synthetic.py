"""Acceptance that is made up: serving engines can be told how many drafts to accept, to time a drafter that they lack.

Nothing of such a run says anything about a drafter, and its text is not the target's: it judges nothing and is not
judged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from parity.errors import UsageError
from parity.golden.producer import Producer

NOTE = "synthetic acceptance"
"""Of a producer: what in its environment forced it."""

VARIABLES: Mapping[str, str] = {
    "SGLANG_SIMULATE_ACC_LEN": "SGLang accepts this many tokens a round",
    "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": "TensorRT-LLM accepts this many drafts a round",
    "SGLANG_SIMULATE_UNIFORM_EXPERTS": "SGLang routes to made-up experts",
    "SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS": "SGLang routes to made-up experts",
    "VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "vLLM routes to made-up experts",
}
"""Environment variables of SGLang (`environ.py`), TensorRT-LLM (`speculative/interface.py`) and vLLM (`envs.py`) that
put made-up acceptance, or made-up experts, in the place of the model's."""

OFF = re.compile(r"|-.*|[+]?0*\.?0*|false|no|off|none", re.IGNORECASE)
"""Values that leave them off: SGLang's default is -1."""

OPTIONS = re.compile(
    r"synthetic_acceptance|rejection_sample_method\W+synthetic|spec[-_]decode[-_]acceptance[-_](?:length|rate)"
    r"|" + "|".join(VARIABLES),
    re.IGNORECASE,
)
"""Options of vLLM (`speculative_config`) and ATOM that do the same, in whatever text tells how a server was started."""


def forced_by(environment: Mapping[str, str] | None = None) -> str:
    """The variables that force acceptance or experts, with their values; '' where none does.

    Args:
        environment: this process's by default.
    """
    there = os.environ if environment is None else environment
    found = [f"{name}={there[name][:80]}" for name in VARIABLES if not OFF.fullmatch(there.get(name, "").strip())]
    return ", ".join(found)


def option_in(text: str) -> str:
    """The option or variable that a text says forces acceptance; '' where none does.

    Null is no value: servers list their options whether they are set or not.
    """
    for found in OPTIONS.finditer(text):
        if not re.match(r"\w*\W{0,4}(?:null|none|-1\b|-1\.0|false)", text[found.end() :], re.IGNORECASE):
            return found.group()
    return ""


def synthetic(producer: Producer) -> str:
    """What of a producer's record says that its acceptance is made up; '' where nothing does."""
    notes = (f"{name}: {value}" for name, value in producer.notes.items() if name != NOTE)
    return producer.notes.get(NOTE, "") or next(filter(None, map(option_in, notes)), "")


def refuse_synthetic(producer: Producer, named: str) -> None:
    """Raises:
    UsageError: the acceptance of this dump is made up.
    """
    if what := synthetic(producer):
        raise UsageError(
            f"{named} was made with synthetic acceptance ({what}): what it accepts is not the drafter's; make it anew "
            "without that"
        )
