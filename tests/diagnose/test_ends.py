"""A device that emits tokens behind the end of a text, from end to end: `diff` and `diagnose` say the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from parity.golden.store import Dump

IGNORES = "parity.device.faults:accept_end_ignored"


def an_accepted_draft(golden: Dump) -> int:
    """A token that a round accepted, others behind it in the same round, and that comes only there."""
    for told in golden.manifest.case.prompts:
        emitted, at = list(told.generation.emitted), 1
        for length in told.generation.acceptance_length:
            found = [one for one in emitted[at : at + length - 1] if emitted.index(one) >= at]
            if found:
                return found[0]
            at += length
    raise AssertionError("no round accepts a draft")


@pytest.fixture(scope="module")
def ended_golden(two_layer_golden, remake_small_golden, tmp_path_factory) -> Dump:
    """The golden of two layers once more, an accepted draft of it being the end of its text."""
    folder, model = tmp_path_factory.mktemp("ended"), two_layer_golden.manifest.model
    shutil.copytree(model.target.path, folder / "target")
    for name in ("config.json", "generation_config.json"):
        file = folder / "target" / name
        said = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(said | {"eos_token_id": an_accepted_draft(two_layer_golden)}))
    pair = dict(target=folder / "target", drafter=Path(model.drafter.path))
    return remake_small_golden(folder / "golden", max_new_tokens=6, **pair)


def test_tokens_behind_an_end_fail_and_are_named(ended_golden, parity):
    assert "eos" in [one.generation.finish for one in ended_golden.manifest.case.prompts]
    asked = ("--golden", ended_golden.folder, "--device", IGNORES)
    failed = parity("diff", *asked, "--mode", "chained")
    assert failed.code == 1 and "accept.length" in failed.out
    told = parity("diagnose", *asked)
    assert told.code == 1 and "tokens behind EOS are emitted" in told.last and "every stage passes" not in told.out
