"""Sampling of the references: three implementations of the equations that do not know each other say the same."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parity.compare.sampling import oracle
from parity.compare.sampling.replay import decisions
from parity.compare.sampling.round import SampledRound
from parity.compare.vocabulary import DraftVocabulary
from parity.device.engines import numpy_engine
from parity.device.kernels.sample import probabilities
from parity.device.sampler import Sampler as DeviceSampler
from parity.gates.sampling import rule as alone
from parity.gates.sampling.rounds import Play, sampled, table
from parity.references import sampling, seam
from parity.seam import DRAWS, Sampling
from tests.sample import sample

WIDTH, K = 40, 3
EVERY = dict(temperature=0.7, top_k=6, top_p=0.9, min_p=0.05)
SETTINGS = [
    *(Sampling(rule=rule, **more) for rule in ("residual", "match") for more in ({}, EVERY)),
    Sampling(top_p=0.6),
    Sampling(min_p=0.2, temperature=2.0),
    Sampling(temperature=0),
]
FAMILIES = {"p-eagle": "drafter", "eagle-3": "eagle3", "draft-model": "draft-model", "dflash": "dflash"}
FAMILIES |= {"n-gram": "n-gram"}


def made_up(count=48):
    """Logits with ties of target and drafter, drafts of the drafter's, and numbers."""
    random = np.random.default_rng(5)
    target, draft = ((random.normal(size=(count, rows, WIDTH)) * 2).round(1) for rows in (K + 1, K))
    return target.astype(np.float32), draft.astype(np.float32), random.random((count, len(DRAWS), K + 1), np.float32)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_reference_device_and_oracle_decide_the_same(settings):
    target, draft, numbers = made_up()
    p, q = (sampling.processed(torch.from_numpy(rows), settings) for rows in (target, draft))
    for logits, ours in ((target, p), (draft, q)):
        np.testing.assert_allclose(ours, oracle.processed(logits, settings), atol=1e-12)
        np.testing.assert_allclose(ours, probabilities(numpy_engine.array(logits), settings).held, atol=1e-5)
    tables = torch.from_numpy(numbers).double()
    drafts = torch.stack([sampling.drawn(*pair) for pair in zip(q, tables[:, 0, :K], strict=True)])
    ours = [sampling.decided(*round_, settings) for round_ in zip(p, q, drafts, tables, strict=True)]
    theirs = DeviceSampler(settings, numbers, numpy_engine).decide(target, draft, drafts.numpy(), numbers)
    np.testing.assert_array_equal(torch.stack(ours), theirs)
    vocabulary = DraftVocabulary(np.arange(WIDTH), "")
    for number, tokens in enumerate(ours):
        logits = draft[number], target[number]
        seen = SampledRound(0, 1, drafts[number].numpy(), tokens.numpy(), *logits, numbers[number])
        assert all(one.right and not one.close for one in decisions(seen, settings, vocabulary))


@pytest.mark.parametrize("settings", SETTINGS[:4], ids=str)
def test_the_rule_keeps_the_exact_distribution(settings, monkeypatch):
    """The gate's enumeration, by the reference's rule: every outcome of a small round, and every edge on a grid."""
    monkeypatch.setattr(alone, "FINE", 256)
    monkeypatch.setattr(alone, "P", alone.P[:2])
    monkeypatch.setattr(alone, "Q", alone.Q[:1])

    def decide(settings, target, draft, drafts, numbers):
        p, q = (sampling.processed(torch.from_numpy(rows), settings) for rows in (target, draft))
        rounds = zip(p, q, torch.from_numpy(drafts), torch.from_numpy(numbers).double(), strict=True)
        return torch.stack([sampling.decided(*one, settings) for one in rounds]).numpy()

    device = SimpleNamespace(decide=decide)
    if settings.temperature == 1:
        assert alone.whole_rounds(device, settings)[1].by <= alone.EXACT
    assert alone.fine_shares(device, settings, 0)[1].by <= 1 / 256 + 1e-5


def test_nothing_left_of_p_is_all_of_p():
    p = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    assert sampling.residual(p, p).tolist() == p.tolist()


@pytest.mark.parametrize("family", sample(FAMILIES))
@pytest.mark.parametrize("rule", ["residual", "match"])
def test_the_loop_samples_in_every_family(family, rule, tiny):
    """The gate's replay judges the references as it judges a device."""
    made = seam.load(tiny / "target", tiny / FAMILIES[family], 3)
    settings, numbers = Sampling(temperature=1.2, top_p=0.95, rule=rule), table((2,), 8, 3)
    rounds = sampled(made, Play(settings, 0, list(range(200, 230)) * 2, 8, numbers))
    offsets = getattr(made.loop.drafter, "to_target", torch.Tensor.long)
    width = 1280 if rounds[-1].draft_logits is None else rounds[-1].draft_logits.shape[1]
    vocabulary = DraftVocabulary(offsets(torch.arange(width)).numpy(), "")
    found = [one for seen in rounds for one in decisions(seen, settings, vocabulary)]
    kinds = {one.what for one in found}
    assert kinds >= {"target"} if family == "n-gram" else kinds > {"target"}
    assert all(one.right and not one.close for one in found), [str(one) for one in found if not one.right]
    assert [list(seen.emitted[0]) for seen in rounds] == [list(seen.emitted[1]) for seen in rounds]
    assert made.loop.sampler is None, "greedy again"
