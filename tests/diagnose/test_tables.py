"""Rows that ids choose of a table: which ones a device has instead, and by what rule."""

from __future__ import annotations

import numpy as np
import pytest

from parity.api import run_device
from parity.diagnose.clock import TimeIsUp
from parity.diagnose.components import components
from parity.diagnose.components.tables import in_table
from parity.golden.trust import trusted
from parity.golden.views import GoldenSlice
from tests.diagnose.made_up_rows import random, said, wrong

TABLE = random(96, 48, seed=3).astype(np.float32)
IDS = np.append(np.random.default_rng(4).integers(0, 96, 56), [7, 50, 9, 61])
GOLDEN = TABLE[IDS].astype(np.float64)


def told(taken: np.ndarray) -> str:
    """What is said of rows of these ids."""
    off = wrong(GOLDEN, TABLE[taken].astype(np.float64))
    return said(in_table(off, (IDS, TABLE)))


@pytest.mark.parametrize(
    ("taken", "says"),
    [
        (np.where(IDS >= 80, 79, IDS), "the embedding of id 79"),
        ((IDS + 1) % 96, "the embedding of the id behind"),
        (np.maximum(IDS - 1, 0), "the embedding of the id before"),
        (np.where(IDS < 90, IDS + 5, IDS), "the embedding of the id +5"),
        (np.where(IDS ^ 32 < 96, IDS ^ 32, IDS), "the embedding of the id with bit 32 changed"),
        (IDS % 64, "the embedding of the id modulo 64"),
    ],
)
def test_the_rule_of_the_ids_is_told(taken, says):
    assert told(taken).startswith(says)


def test_without_a_rule_a_few_of_the_ids_are_told():
    swapped = IDS.copy()
    for one, other in ((7, 50), (50, 9), (9, 61), (61, 7)):
        swapped[other == IDS] = one
    assert told(swapped).startswith("the embeddings of other ids: 7 as 61, 9 as 50, 50 as 7 and 1 more")


def test_one_row_for_all_new_ids_is_told_and_what_it_is_about():
    mean = TABLE[:88].mean(axis=0, dtype=np.float64)
    for row, says in (
        (mean, "one and the same row whatever the id, about the mean of all embeddings"),
        (random(1, 48, seed=6)[0], "one and the same row whatever the id"),
    ):
        off = wrong(GOLDEN, np.where((IDS >= 88)[:, None], row, GOLDEN))
        assert said(in_table(off, (IDS, TABLE))).split(":")[0] == says


def test_rows_of_no_id_are_not_told():
    off = wrong(GOLDEN, GOLDEN + random(*GOLDEN.shape, seed=5) * 0.3)
    assert said(in_table(off, (IDS, TABLE))) == ""


def test_a_reading_ends_once_the_time_is_up_and_what_was_found_is_said(shallow_golden, tmp_path):
    golden, asked = GoldenSlice(trusted(shallow_golden), 0, 1), []
    run = run_device(
        golden, "parity.device.faults:load_embed_scaled", "local", "bfloat16", out=tmp_path / "run", free=False
    )

    def up() -> None:
        asked.append(1)
        raise TimeIsUp

    assert components(golden, run, "target.embed") and components(golden, run, "target.embed", check=up) == ()
    assert len(asked) == 1
