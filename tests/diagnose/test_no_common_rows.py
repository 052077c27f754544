"""Exact stages of which both sides have no row in the same shape: described, not raised about."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.rows import StageRows
from parity.diagnose import residuals, signature


@pytest.fixture
def no_rows() -> StageRows:
    """An exact stage of two columns, R = 0."""
    none = np.zeros(0, np.int64)
    empty = np.zeros((0, 2), np.int64)
    return StageRows(SimpleNamespace(name="verify.tokens"), empty, empty, None, none, none, none)


def test_its_signature_says_that_there_are_none(no_rows):
    assert list(signature._exact(no_rows)) == ["no row of both sides stands in the same shape"]


def test_none_of_them_is_wrong(no_rows, monkeypatch):
    monkeypatch.setattr(residuals, "stage_rows", lambda *_: no_rows)
    golden = SimpleNamespace(declared={"verify.tokens": no_rows.named})
    assert residuals.red_rows(golden, None, "verify.tokens") == {}
