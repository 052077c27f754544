"""Weights that stay in their files give the golden that weights in memory give, within the memory that was given."""

from __future__ import annotations

import gc
import json
import shutil
from collections import Counter
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import torch

from parity.errors import UsageError
from parity.fixtures.recipe import real_shape
from parity.producers import dump_golden
from parity.references import gpt_oss, stored
from parity.references.company import Company
from tests.sample import WHOLE

IDS = [5, 900, 17, 33, 210, 76, 8, 1100, 45, 61, 7, 99]


@pytest.fixture(scope="module")
def pair(tiny, tmp_path_factory):
    """A pair of random weights, two layers of it, as the recipe writes those of real width."""
    configs, out = tmp_path_factory.mktemp("configs"), tmp_path_factory.mktemp("pair") / "small"
    for name, source in (("gpt-oss-20b", "target-mxfp4"), ("p-eagle-20b", "drafter")):
        (configs / name).mkdir()
        shutil.copy(tiny / source / "config.json", configs / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real_shape, "CONFIGS", configs)
        real_shape.write(out, layers=2)
    prompts = {"one": IDS, "two": IDS[3:9], "three": [*IDS[::-1], *IDS]}
    (out / "prompts.jsonl").write_text(
        "".join(json.dumps({"id": name, "ids": ids}) + "\n" for name, ids in prompts.items())
    )
    return out


def dumped(pair, out, tokens=5 if WHOLE else 3, **options):
    return dump_golden(
        pair / "target",
        pair / "drafter",
        pair / "prompts.jsonl",
        3,
        tokens,
        reference="plain",
        out=out,
        **options,
    )


@pytest.fixture
def in_files(monkeypatch):
    """Every weight stays in its file; how often each was read and converted."""
    monkeypatch.setattr(stored, "LARGE", 1)
    monkeypatch.setattr(stored, "ROWS", 2**20)  # a table in one piece: parts may round otherwise
    read, get = Counter(), stored.Hot.get

    def counted(self, name, make, *more):
        return get(self, name, lambda: read.update([name]) or make(), *more)

    monkeypatch.setattr(stored.Hot, "get", counted)
    return read


def test_the_golden_is_the_same_bit_for_bit_and_prompts_together_read_each_weight_once(pair, tmp_path, in_files):
    whole, visits = dumped(pair, tmp_path / "whole"), {}
    for batch in (1, 2, 3) if WHOLE else (1, 3):
        in_files.clear()
        streamed = dumped(pair, tmp_path / f"streamed-{batch}", memory=0.0, batch=batch)
        visits[batch] = in_files.total()
        assert whole.rows.keys() == streamed.rows.keys() and len(whole.rows) > (900 if WHOLE else 500)
        assert all(np.array_equal(whole.stored(*place), streamed.stored(*place)) for place in whole.rows)
    assert visits[3] < visits[1] / 3 and [*visits.values()] == sorted({*visits.values()}, reverse=True), visits


@pytest.mark.parametrize("dies_at", [1, 9, 25, 40, 53] if WHOLE else [9])
def test_a_dump_that_was_killed_goes_on_behind_its_last_whole_layer(pair, tmp_path, monkeypatch, dies_at):
    """In the truth, of a prompt and of a round, and in the floors; nothing but what was under way is computed again."""
    computed, layer = [], gpt_oss.layer

    def counted(*given):
        computed.append(given[1])
        if len(computed) == dies_at:
            raise KeyboardInterrupt
        return layer(*given)

    def run(out):
        computed.clear()
        with suppress(KeyboardInterrupt):
            dumped(pair, out, 5 if WHOLE else 2, memory=0.01, batch=3, resume=True)
        gc.collect()  # a process that is killed holds no file any more
        return len(computed)

    monkeypatch.setattr(gpt_oss, "layer", counted)
    before = run(tmp_path / "killed")
    assert before == dies_at and not (tmp_path / "killed").exists()
    dies_at = None
    after, whole = run(tmp_path / "killed"), run(tmp_path / "undisturbed")
    assert before + after <= whole + 6  # one of each prompt, in both floors, was not recorded yet
    one, other = (
        {path.name: path.read_bytes() for path in (tmp_path / name).glob("p*")} for name in ("killed", "undisturbed")
    )
    assert one == other and not list(tmp_path.glob("*.parts"))


def test_a_run_that_fails_ends_the_others():
    company, done = Company(), []

    def run(number):
        for step in range(4):
            company.wait(step)
            if number == step == 1:
                raise UsageError("no such weight")
        done.append(number)

    with pytest.raises(UsageError, match="no such weight"):
        company.together([partial(run, number) for number in range(3)])
    assert not done
    assert company.together([lambda: 1, lambda: 2]) == [1, 2]


def test_tables_in_parts_round_alike_within_a_few_ulp(pair):
    folder = pair / "target"
    hot = stored.Hot(0)
    table = stored.StoredCheckpoint(folder, torch.float32, hot).outer()["lm_head.weight"]
    x = torch.randn(3, table.shape[1], generator=torch.Generator().manual_seed(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "ROWS", 100)
        parts = torch.nn.functional.linear(x, table)
    whole = gpt_oss.Checkpoint(folder, torch.float32).outer()["lm_head.weight"]
    torch.testing.assert_close(parts, x @ whole.T, rtol=1e-5, atol=1e-5)


def test_what_is_kept_stays_within_its_memory_and_the_latest_used_stays():
    hot, made = stored.Hot(100), []

    def get(name: str) -> torch.Tensor:
        return hot.get((name,), lambda: made.append(name) or torch.zeros(10))

    for name in ("a", "b", "a", "c", "a", "b"):
        get(name)
    assert made == ["a", "b", "c", "b"] and hot.bytes == 80
    assert hot.get(("large",), lambda: torch.zeros(99)).nbytes > hot.most and hot.bytes == 80


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"roundings": 2}, "one rounding"),
        ({"memory": None, "batch": 2}, "--batch goes with --memory"),
        ({"reference": "own"}, "--memory is no option of --reference own"),
    ],
)
def test_what_does_not_go_with_it_is_said(options, sentence, pair, tmp_path):
    asked = {"reference": "plain", "memory": 1.0, "out": tmp_path / "no"} | options
    with pytest.raises(UsageError, match=sentence):
        dump_golden(pair / "target", pair / "drafter", pair / "prompts.jsonl", 3, 5, **asked)


def test_other_families_are_refused(pair, tiny, tmp_path):
    with pytest.raises(UsageError, match="plain --memory is for p-eagle"):
        dump_golden(
            pair / "target",
            tiny / "eagle3",
            pair / "prompts.jsonl",
            3,
            5 if WHOLE else 3,
            reference="plain",
            memory=1.0,
        )
