"""Prompt lookup on the device: its stages, its tokens by an independent judge, a golden without weights, its faults."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from parity import device
from parity.api import gate_device
from parity.device.drafter_config import NGramConfig as DeviceConfig
from parity.device.ngram import NGram as DeviceNGram
from parity.errors import UsageError
from parity.references.ngram import NGram, NGramConfig

FAMILY, K = "n-gram", 4


@pytest.fixture(scope="module")
def golden(family_golden):
    return family_golden(FAMILY)


def sides(longest: int, shortest: int):
    """Both implementations' drafts behind a text."""
    theirs = NGram(NGramConfig(num_layers=0, max_positions=1, longest=longest, shortest=shortest))
    ours = DeviceNGram(DeviceConfig(longest=longest, shortest=shortest))
    return (
        lambda text: theirs.following(list(text), K),
        lambda text: ours.following(np.array(text, np.int64), K).tolist(),
    )


def test_drafts_are_those_of_transformers_prompt_lookup():
    """Random texts over few tokens: every length of n-gram matches, overlaps the end, or does not match."""
    torch = pytest.importorskip("torch")
    lookup = pytest.importorskip("transformers.generation.candidate_generator").PromptLookupCandidateGenerator
    rng, counts = np.random.default_rng(0), set()
    for longest in (1, 2, 3, 5):
        judge = lookup(num_output_tokens=K, max_matching_ngram_size=longest, max_length=10**6)
        for _ in range(60):
            text = rng.integers(0, rng.integers(2, 30), rng.integers(2, 40)).tolist()
            due = judge.get_candidates(torch.tensor([text]))[0][0, len(text) :].tolist()
            assert [drafts(text) for drafts in sides(longest, 1)] == [due, due], (longest, text)
            counts.add(len(due))
    assert counts == set(range(K + 1))


def test_an_ngram_shorter_than_the_shortest_is_no_match():
    """The documented example of vLLM's proposer, and the same text when two tokens are not enough."""
    text = [1, 2, 3, 4, 2, 3]
    assert [drafts(text) for drafts in sides(3, 2)] == [[4, 2, 3], [4, 2, 3]]
    assert [drafts(text) for drafts in sides(3, 3)] == [[], []]
    assert [drafts([7]) for drafts in sides(3, 1)] == [[], []]


def test_the_golden_says_that_there_are_no_weights_and_which_lengths_are_looked_up(golden):
    model = golden.manifest.model
    assert (model.family, model.num_drafter_layers, model.drafter.weights_digest) == (FAMILY, 0, "")
    assert model.drafter.constants == {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
    assert [name for name in golden.manifest.stages if "drafter" in name] == ["drafter.draft_tokens"]


def test_tokens_are_those_of_transformers_prompt_lookup(golden):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    target = transformers.GptOssForCausalLM.from_pretrained(
        golden.manifest.model.target.path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for prompt in golden.manifest.case.prompts:
        ids = torch.tensor([prompt.ids])
        made = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=golden.manifest.case.max_new_tokens,
            do_sample=False,
            prompt_lookup_num_tokens=K,
            max_matching_ngram_size=3,
        )
        assert made[0, len(prompt.ids) :].tolist() == list(prompt.generated.emitted)


@pytest.mark.parametrize(
    "config",
    [
        {"prompt_lookup_min": 4},
        {"prompt_lookup_max": 0},
        {"prompt_lookup_min": 0},
        {"prompt_lookup_max": "3"},
        {"prompt_lookup_min": None},
    ],
)
def test_lengths_that_make_no_sense_are_refused_by_name(config, tiny, tmp_path):
    from parity.references.seam import load

    folder = tmp_path / "n-gram"
    shutil.copytree(tiny / "n-gram", folder)
    raw = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(raw))
    for made in (device.load, load):
        with pytest.raises(UsageError, match="prompt_lookup"):
            made(tiny / "target", folder, 2)


def test_each_lane_has_a_length_of_its_own():
    first = DeviceNGram(DeviceConfig(shortest=2, longest=3))
    second = first.lane(None)
    first.rollback(7)
    second.load(3)
    assert (first.off_load(), second.off_load()) == (7, 3)


def test_a_gate_for_which_the_family_has_nothing_takes_no_verdict_away(golden):
    """A clean device was inconclusive: prompt lookup has no taps, and their gate nothing to judge."""
    report = gate_device(golden, only=("provenance", "taps"))
    assert [result.verdict for result in report.results] == ["pass", "not judged"] and report.verdict == "pass"
    alone = gate_device(golden, only=("taps",))
    assert alone.verdict == "inconclusive"
