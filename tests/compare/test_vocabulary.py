"""Which target id a column of the draft logits stands for: what is not known is no column, whoever says it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from parity.compare.rows import StageRows
from parity.compare.vocabulary import OFFSETS, DraftVocabulary, draft_vocabulary
from parity.errors import Inconclusive


def test_a_token_without_a_column_has_none():
    vocabulary = DraftVocabulary(np.array([7, -1, 9, 7]), "a test")
    assert vocabulary.columns(np.array([9, 7, 8, -1, 0])).tolist() == [2, 0, -1, -1, -1]


def test_it_says_whether_every_column_is_known_and_in_which_order():
    ordered, unordered, gaps = (DraftVocabulary(np.array(one), "") for one in ([3, 5, 9], [3, 9, 5], [3, -1, 9]))
    assert (ordered.ascending, unordered.ascending, gaps.ascending) == (True, False, True)
    assert (ordered.whole, unordered.whole, gaps.whole) == (True, True, False)


@pytest.fixture
def rows():
    """Two rows of three columns, the best of which are the first and the last, and the ids that were drafted."""

    def of(values) -> StageRows:
        none = np.zeros(len(values), np.int64)
        return StageRows(SimpleNamespace(name=""), np.array(values), np.array(values), None, none, none, none)

    return of([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]]), of([40, 60])


def golden(told, folder=""):
    model = SimpleNamespace(draft_vocabulary=told, drafter=SimpleNamespace(path=str(folder)))
    return SimpleNamespace(manifest=SimpleNamespace(model=model))


def test_the_manifest_speaks_first_then_the_checkpoint_then_the_rows(rows, tmp_path):
    save_file({OFFSETS: np.array([10, 10, 10])}, tmp_path / "model.safetensors")
    assert draft_vocabulary(golden((4, 5, 6), tmp_path), *rows).tokens.tolist() == [4, 5, 6]
    assert draft_vocabulary(golden((), tmp_path), *rows).tokens.tolist() == [0, 1, 2]
    assert draft_vocabulary(golden(None, tmp_path), *rows).tokens.tolist() == [10, 11, 12]
    assert draft_vocabulary(golden(None), *rows).tokens.tolist() == [40, -1, 60]
    assert draft_vocabulary(None, *rows).tokens.tolist() == [40, -1, 60]


def test_a_checkpoint_without_offsets_numbers_its_columns_as_the_target_does(rows, tmp_path):
    save_file({"weight": np.zeros(1)}, tmp_path / "model.safetensors")
    assert draft_vocabulary(golden(None, tmp_path), *rows).tokens.tolist() == [0, 1, 2]


def test_offsets_that_cannot_be_read_or_are_of_another_width_settle_nothing(rows, tmp_path):
    shard = tmp_path / "model.safetensors"
    save_file({OFFSETS: np.array([10, 10])}, shard)
    with pytest.raises(Inconclusive, match=r"has 2 entries, the draft logits 3 columns"):
        draft_vocabulary(golden(None, tmp_path), *rows)
    shard.write_bytes(b"torn")
    with pytest.raises(Inconclusive, match="cannot be read"):
        draft_vocabulary(golden(None, tmp_path), *rows)
