"""The drafter's oracle: K drafts in one pass equal the same rows recomputed without a cache."""

from __future__ import annotations

import pytest
import torch

from parity.errors import UsageError
from parity.references.drafter_config import PEagleConfig
from parity.references.drafter_layers import KVCache
from parity.references.peagle import PEagle
from parity.references.rope import schedule
from tests.references.chain_cases import ROUNDING, relative

COMMITTED, MASKED = 9, 3


@pytest.fixture(scope="module")
def drafter(tiny):
    return PEagle.load(tiny / "drafter")


@pytest.fixture(scope="module")
def rows(drafter):
    generator = torch.Generator().manual_seed(0)
    taps = torch.randn(1, COMMITTED, drafter.fc.in_features, generator=generator)
    unknown = drafter.mask_hidden.expand(1, MASKED, -1)
    ids = torch.randint(0, 1000, (1, COMMITTED), generator=generator)
    ids = torch.cat((ids, ids.new_full((1, MASKED), drafter.config.placeholder_id)), dim=1)
    return ids, drafter.fuse(torch.cat((taps, unknown), dim=1)), torch.arange(COMMITTED + MASKED)[None]


def causal(queries: torch.Tensor, keys: int) -> torch.Tensor:
    return (torch.arange(keys) <= queries[0][:, None])[None, None]


@torch.no_grad()
def test_rows_over_a_cache_equal_all_rows_at_once(drafter, rows):
    ids, hidden, positions = rows
    total = COMMITTED + MASKED
    whole = drafter(ids, hidden, positions, causal(positions, total))
    cache = KVCache()
    drafter(ids[:, :6], hidden[:, :6], positions[:, :6], causal(positions[:, :6], 6), cache)
    cache.start = 6
    rest = drafter(ids[:, 6:], hidden[:, 6:], positions[:, 6:], causal(positions[:, 6:], total), cache)
    assert relative(rest, whole[:, 6:]) < ROUNDING


@torch.no_grad()
def test_placeholder_rows_are_overwritten_by_the_next_rounds_rows(drafter, rows):
    ids, hidden, positions = rows
    cache = KVCache()
    drafter(ids, hidden, positions, causal(positions, COMMITTED + MASKED), cache)
    cache.start = COMMITTED
    again = slice(COMMITTED, COMMITTED + 1)
    drafter(ids[:, :1], hidden[:, :1], positions[:, again], causal(positions[:, again], COMMITTED + 1), cache)
    assert cache.rows[0][0].shape[2] == COMMITTED + 1


def test_d2t_is_an_offset(drafter):
    ids = torch.tensor([0, 5, drafter.config.draft_vocab_size - 1])
    assert drafter.to_target(ids).tolist() == (ids + drafter.d2t[ids]).tolist()
    assert (
        drafter.t2d.nonzero()[:, 0].tolist()
        == drafter.to_target(torch.arange(drafter.config.draft_vocab_size)).tolist()
    )


def test_an_unknown_rope_type_is_an_error():
    with pytest.raises(UsageError, match="longrope"):
        schedule({"rope_type": "longrope", "rope_theta": 1e4}, 32)


def test_a_missing_key_is_named():
    with pytest.raises(UsageError, match="hidden_size"):
        PEagleConfig.from_dict({})


def test_yarn_of_gpt_oss_20b_has_the_published_ramp():
    rope = dict(rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=32.0, beta_slow=1.0)
    frequencies, scale = schedule(rope | dict(truncate=False, original_max_position_embeddings=4096), 64)
    plain = 150000.0 ** -(torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    kept = (plain / frequencies).round(decimals=6)
    assert scale == pytest.approx(1.3465736)
    assert (kept[:9] == 1).all() and kept[9] > 1 and kept[17] < 32 and (kept[18:] == 32).all()
