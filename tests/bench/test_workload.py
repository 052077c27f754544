"""Prompts of other layouts, lengthened; checkpoints with room; requests that do not fit."""

from __future__ import annotations

import json

import pytest

from parity.bench.pair import with_room
from parity.bench.request import BenchRequest
from parity.bench.workload import Workload, positions_of, read_workload
from parity.errors import UsageError


def lines(path, *entries):
    path.write_text("\n".join(map(json.dumps, entries)) + "\n")
    return path


@pytest.fixture(scope="module")
def pair(tiny):
    return tiny / "target", tiny / "drafter"


def test_a_named_field_is_a_users_message_or_goes_in_as_it_is(tmp_path, pair):
    gsm8k = lines(tmp_path / "gsm8k.jsonl", {"question": "What is a list?", "answer": "#### 3"})
    bench = lines(tmp_path / "speed.jsonl", {"question_id": 7, "turns": ["What is a list?", "And a set?"]})
    asked = lines(tmp_path / "own.jsonl", {"messages": [{"role": "user", "content": "What is a list?"}]})
    raw = lines(tmp_path / "raw.jsonl", {"text": "What is a list?"})
    expected = read_workload(asked, pair).prompts["1"]
    assert read_workload(gsm8k, pair, "question").prompts == {"1": expected}
    assert read_workload(bench, pair, "turns").prompts == {"7": expected}
    assert read_workload(gsm8k, pair, "question", raw=True).prompts == read_workload(raw, pair).prompts


def test_messages_are_turns_too_and_the_first_prompts_are_taken(tmp_path, pair):
    path = lines(tmp_path / "many.jsonl", *({"id": n, "turns": [{"content": f"{n}?"}]} for n in range(9)))
    made = read_workload(path, pair, "turns", first=2)
    assert (made.name, list(made.prompts)) == ("many", ["0", "1"])
    assert made.digest != read_workload(path, pair, "turns", first=3).digest


@pytest.mark.parametrize(
    ("entry", "said"), [({"answer": "4"}, "question is neither"), ({"question": []}, "neither"), ([1], "neither")]
)
def test_a_line_without_the_field_is_named(tmp_path, pair, entry, said):
    path = lines(tmp_path / "bad.jsonl", {"question": "What?"}, entry)
    with pytest.raises(UsageError, match=rf"bad\.jsonl:2: .*{said}"):
        read_workload(path, pair, "question")


def test_long_prompts_repeat_the_files_text_and_end_with_the_prompt():
    short = Workload("made-up", {"one": [1, 2, 3], "two": [4, 5]})
    long = short.lengthened(12)
    assert {len(ids) for ids in long.prompts.values()} == {12}
    assert long.prompts["one"][-3:] == [1, 2, 3] and long.prompts["one"][:9] == [1, 2, 3, 4, 5, 1, 2, 3, 4]
    assert long.prompts["two"][:5] != long.prompts["one"][:5]
    with pytest.raises(UsageError, match="more than 2"):
        short.lengthened(2)


def test_contexts_are_read_in_the_users_words():
    assert [positions_of(one) for one in ("short", "8K", "16k", "300")] == [None, 8192, 16384, 300]
    for wrong in ("long", "8M", "0", "1", "-8K", "K"):
        with pytest.raises(UsageError, match="--context"):
            positions_of(wrong)


def test_room_is_made_in_a_copy_of_the_config_and_said(tiny, tmp_path):
    (target, drafter), said = with_room((tiny / "target", tiny / "drafter"), 8192, 10, tmp_path)
    config = json.loads((drafter / "config.json").read_text())
    assert (config["max_position_embeddings"], config["num_parallel_positions"]) == (8192, 10)
    weights = {path.name: path.resolve() for path in (tiny / "target").glob("*.safetensors")}
    assert weights and weights == {path.name: path.resolve() for path in target.glob("*.safetensors")}
    assert len(said) == 3 and "drafter: num_parallel_positions 8 raised to 10" in said
    assert with_room((tiny / "target", tiny / "drafter"), 100, 4, tmp_path / "none")[1] == []


@pytest.mark.parametrize(
    "asked",
    [
        {"scenarios": ("lonely",)},
        {"ks": ()},
        {"ks": (0,)},
        {"ks": (2, 2)},
        {"repeats": 0},
        {"max_new_tokens": 1},
        {"peer": "sglang"},
        {"workloads": ()},
    ],
    ids=str,
)
def test_a_request_that_does_not_fit_is_one_sentence(pair, asked):
    settings = {"workloads": (Workload("one", {"a": [1, 2]}),)} | asked
    with pytest.raises(UsageError):
        BenchRequest(settings.pop("workloads"), *pair, **settings)
