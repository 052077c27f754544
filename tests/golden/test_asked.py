"""Options that no dump takes are refused by the plan and by the dump alike, before torch or a checkpoint is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parity import producers
from parity.errors import UsageError
from parity.producers import dump_golden, plan_golden

BOTH = pytest.mark.parametrize("planned", [True, False], ids=["plan", "dump"])


def ask(planned: bool, out: Path, **asked: object) -> None:
    """Plan or dump a golden of the tiny pair."""
    case = {"target": None, "drafter": None, "prompts": None, "k": 4, "max_new_tokens": 8, "out": out} | asked
    (plan_golden if planned else dump_golden)(**case)
    assert not out.exists()


@BOTH
@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"sample": "temperature=nan"}, "temperature is 0 or a normal number"),
        ({"sample": "temperature=-1"}, "temperature is 0 or a normal number"),
        ({"kv_cache": "fp7"}, "--kv-cache 'fp7': fp8_e4m3 or fp8_e5m2 is due"),
        ({"partial_kv": "1+2"}, "SINK.RETRIEVED.WINDOWxPAGE is due"),
        ({"max_new_tokens": 0}, "--max-new-tokens 0: at least 1 is needed"),
        ({"max_new_tokens": -1}, "--max-new-tokens -1: at least 1 is needed"),
        ({"seed": 3}, "--seed is of --sample"),
        ({"k": 0}, "no round drafts"),
        ({"sketch": 8, "sample": "temperature=1"}, "--sketch and --logits are of greedy goldens"),
        ({"positions": "0-3", "kv_cache": "fp8_e4m3"}, "--positions are of goldens without --kv-cache"),
        ({"positions": "9-3"}, "the range ends before it begins"),
        ({"reference": "plain", "batch": 2}, "--batch goes with --memory"),
        ({"reference": "plain", "memory": 0, "kv_cache": "fp8_e4m3"}, "--kv-cache goes with weights in memory"),
        ({"reference": "plain", "memory": 1, "roundings": 2}, "--memory goes with one rounding"),
        ({"reference": "eagle", "kv_cache": "fp8_e4m3"}, "--kv-cache is no option of --reference eagle"),
        ({"resume": True, "out": None}, "--resume needs --out"),
    ],
)
def test_what_does_not_go_is_refused_before_torch_is_loaded(asked, sentence, planned, tmp_path, monkeypatch):
    monkeypatch.setattr(producers, "load_reference", lambda *named: pytest.fail("a reference was loaded"))
    with pytest.raises(UsageError, match=sentence):
        ask(planned, **{"out": tmp_path / "golden"} | asked)


@BOTH
@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"memory": 1}, "--memory is no option of --reference own"),
        ({"reference": "vllm", "sketch": 8}, "--sketch is no option of --reference vllm"),
        ({"reference": "eagle", "k": (4, 0)}, "--reference eagle drafts K tokens in every round"),
        ({"k": 9}, "-k 9: this drafter drafts 1 to 8 tokens"),
        ({"k": (4, 9)}, "-k 4,9: this drafter drafts 1 to 8 tokens"),
        ({"max_new_tokens": 600}, "p.jsonl: prompt a: a prompt of 3 tokens, 600 new tokens and 4 drafts need 607"),
        ({"partial_kv": "1+4+2x512"}, "3584 rows are all of a cache of 512"),
        ({"drafter": "n-gram", "kv_cache": "fp8_e4m3"}, "a n-gram drafter has no rows that attend to a cache"),
        ({"prompt": {"id": "a", "ids": [5]}}, "p.jsonl:1: prompt a has 1 token, at least 2 are needed"),
        ({"prompt": {"id": "a", "text": ""}}, "p.jsonl:1: prompt a has no token, at least 2 are needed"),
    ],
)
def test_what_does_not_fit_the_pair_is_refused_before_a_model_is_loaded(
    asked, sentence, planned, tiny, tmp_path, monkeypatch
):
    from parity.references import runs

    monkeypatch.setattr(runs.Cast, "truth", lambda cast: pytest.fail("a model was loaded"))
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(json.dumps(asked.get("prompt", {"id": "a", "ids": [5, 6, 7]})))
    asked = {name: tiny / value if name == "drafter" else value for name, value in asked.items() if name != "prompt"}
    with pytest.raises(UsageError, match=sentence):
        ask(planned, tmp_path / "golden", **{"prompts": prompts} | asked)


@pytest.mark.parametrize(
    "options",
    [
        ("--sample", "temperature=nan"),
        ("--sample", "temperature=-1"),
        ("--kv-cache", "fp7"),
        ("--partial-kv", "1+2"),
        ("--max-new-tokens", "0"),
        ("--max-new-tokens", "-1"),
        ("--seed", "3"),
        ("--memory", "1"),
        ("--max-new-tokens", "1000000"),
        ("-k", "9"),
    ],
)
def test_a_plan_of_what_the_dump_refuses_is_refused(options, parity):
    ended = parity("dump-golden", *options, "--plan")
    assert ended.code == 2 and ended.err.startswith("parity: ") and not ended.out
