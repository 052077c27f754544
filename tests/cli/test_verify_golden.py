"""`parity verify-golden`: a second dump, byte for byte."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from parity.golden import shards
from parity.golden.store import Dump
from tests.golden.edits import rewrite
from tests.shallow import cut_pair


@pytest.fixture(scope="module")
def short(tiny, tmp_path_factory, remake_small_golden) -> Dump:
    """One prompt, few tokens, few stages; of a pair of two layers each."""
    folder = tmp_path_factory.mktemp("short")
    prompts = folder / "one.jsonl"
    prompts.write_text('{"id": "one", "ids": [5, 6, 7, 8, 9]}\n')
    stages = ("logits", "kv.drafter.1.*")
    asked = dict(prompts=prompts, max_new_tokens=4, stages=stages)
    return remake_small_golden(folder / "golden", **asked, **cut_pair(tiny, folder))


@pytest.fixture
def golden(short, tmp_path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(short.folder, tmp_path / "golden"))


def nudge(golden: Path, key: str) -> None:
    """Change one element of a tensor, and its digest with it: damage that the golden itself does not show."""
    shard = golden / "p000.float32.safetensors"
    tensors = {name: np.array(value) for name, value in shards.read(shard).items()}
    tensors[key].flat[3] += 1
    shards.write(shard, tensors)

    def record(raw):
        row = next(row for row in raw["tensors"] if row["key"] == key and row["variant"] == "float32")
        row["sha256"] = shards.digest(tensors[key])

    rewrite(golden, record)


def test_the_same_case_gives_the_same_bytes(parity, golden, tmp_path):
    file = tmp_path / "verified.json"
    found = parity("verify-golden", golden, "--json", file)
    result = json.loads(file.read_text())
    assert found.code == 0 and found.out.count("\n") == 1, found
    assert result["tensors"] == len(Dump(golden).manifest.tensors) > 0 and result["differing"] == 0
    assert f"{result['tensors']} tensors alike" in found.out


def test_the_first_tensor_that_differs_is_named_with_round_and_stage(parity, golden):
    nudge(golden, "p000/r0002/verify.logits")
    nudge(golden, "p000/r0001/drafter.logits")
    found = parity("verify-golden", golden)
    assert found.code == 1 and "2 of" in found.last
    assert "first drafter.logits (float32), prompt 0, round 1: sha256" in found.last


def test_what_the_prompt_emitted_is_part_of_the_case(parity, golden):
    rewrite(golden, lambda raw: raw["case"]["prompts"][0]["generation"].update(finish="eos"))
    found = parity("verify-golden", golden)
    assert found.code == 1 and "prompts of the case differs" in found.last


def test_damaged_bytes_are_unreadable_input(parity, golden):
    shard = golden / "p000.bfloat16.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    found = parity("verify-golden", golden)
    assert found.code == 2 and "does not match the manifest's digest" in found.err


@pytest.mark.parametrize(
    ("field", "what"),
    [("weights_digest", "weights"), ("tokenizer_digest", "tokenizer"), ("chat_template_digest", "chat template")],
)
def test_a_changed_checkpoint_is_named_and_nothing_is_dumped(field, what, parity, golden):
    rewrite(golden, lambda raw: raw["model"]["target"].update({field: "0" * 64}))
    found = parity("verify-golden", golden)
    assert found.code == 2 and f"the target's {what} changed" in found.err


def test_an_edited_reference_is_said_and_the_bytes_decide(parity, golden):
    rewrite(golden, lambda raw: raw["producer"]["sources"].update({"parity.references.rope": "0" * 64}))
    found = parity("verify-golden", golden)
    assert found.code == 0 and "since the dump: the source of parity.references.rope changed" in found.out
