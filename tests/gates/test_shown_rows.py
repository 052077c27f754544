"""Caches that a device hides, and what quantised ones keep, by hand: which are asked for, the first row, the words."""

from __future__ import annotations

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from parity.errors import Inconclusive
from parity.gates.gate import Check
from parity.gates.rollback import kept, shown_caches
from parity.gates.rollback.baseline import FLOAT32_BOUND
from parity.gates.rollback.kept import KeptRows, kept_rows
from parity.gates.rollback.shown_caches import as_far_as_shown, hidden_caches, require_caches
from parity.grid import Grid

STAGES = ("target.logits", "kv.target.layers.0.k", "kv.target.layers.0.v", "kv.drafter.layers.0.k")
CACHES = STAGES[1:]


@pytest.fixture
def device(monkeypatch):
    """A device of these stages that declares all but those that are hidden."""
    monkeypatch.setattr(shown_caches, "stages_of", lambda says: STAGES)
    monkeypatch.setattr(
        shown_caches, "View", lambda shown, stages: SimpleNamespace(shows=lambda one: stages == STAGES and one in shown)
    )

    def made(*hidden: str):
        says = SimpleNamespace(name="own", shown=set(STAGES) - set(hidden))
        return SimpleNamespace(describe=lambda: says)

    return made


def test_only_caches_that_are_not_declared_are_hidden(device):
    assert hidden_caches(device()) == []
    assert hidden_caches(device("target.logits", CACHES[1], CACHES[2])) == [CACHES[1], CACHES[2]]


def test_a_cache_that_is_declared_has_to_be_handed_over(device):
    whole = dict.fromkeys(STAGES)
    require_caches(device(), whole)
    require_caches(device(*CACHES), {})
    require_caches(device(CACHES[1]), {CACHES[0]: None, CACHES[2]: None})
    for tensors, first, many in (({}, CACHES[0], 3), ({CACHES[0]: None}, CACHES[1], 2)):
        with pytest.raises(Inconclusive) as refused:
            require_caches(device(), tensors)
        said = f"device own hands over no {first} ({many} cache stages are missing): "
        assert str(refused.value) == said + "give the tap every kv.* stage at the end of prefill and commit"


CHECKS = [Check("a", word, f"{word} here", {"x": 1}) for word in ("pass", "fail", "inconclusive", "warn", "not judged")]


def test_of_a_device_that_shows_its_caches_every_check_is_as_it_is(device):
    assert [*as_far_as_shown(CHECKS, device())] == CHECKS


def test_of_hidden_caches_a_failure_stays_and_the_rest_is_not_judged(device):
    passed, failed, *others = as_far_as_shown(CHECKS, device(CACHES[1], CACHES[2]))
    why = f"own does not declare {CACHES[1]} as shown (2 cache stages are missing): what is in its caches is unknown"
    assert failed == CHECKS[1]
    assert passed == Check("a", "not judged", f"{why}; in what it shows nothing breaks", {"x": 1}, undeclared=True)
    assert others == [Check("a", "not judged", why, {"x": 1}, undeclared=True)] * 3


def rows(*values: float, dtype=np.float32) -> np.ndarray:
    """One head of two equal elements a row [n, 1, 2]."""
    return np.array([[[value, value]] for value in values]).astype(dtype)


@pytest.fixture
def keeps(monkeypatch):
    """Rows of a cache in fp8_e4m3, times 2; of another stage none."""
    monkeypatch.setattr(kept, "grids", lambda case, declared, part: {f"{part}.x": Grid("fp8_e4m3", 2.0)})
    golden = SimpleNamespace(manifest=SimpleNamespace(case=None), declared=None)
    bounds = {"kv.x": 0.25, "kv.none": 0.0}
    return KeptRows(SimpleNamespace(golden=golden, flips=True, flip_bound=bounds.get))


def test_a_cache_keeps_the_nearest_number_of_its_format(keeps):
    """Between 2 and 4 e4m3 steps by 0.25, so that times 2 from 4 on the numbers are 0.5 apart."""
    computed = rows(4.0, 4.2, 4.3, 5.0)
    assert keeps.changed("kv.x", computed, rows(4.0, 4.0, 4.5, 5.0)) is None
    for row, wrong in enumerate(([4.5, 4, 4.5, 5], [4, 4.5, 4.5, 5], [4, 4, 4.0, 5], [4, 4, 4.5, 5.5])):
        assert keeps.changed("kv.x", computed, rows(*wrong)) == row
    assert keeps.changed("kv.x", computed, rows(4.0, 4.5, 4.0, 5.5)) == 1
    assert keeps.changed("kv.x", computed, rows(4.2, 4.0, 4.5, 5.0)) == 0  # no number of the format
    for half, due in ((4.0, None), (4.5, None), (5.0, 0), (3.75, 0)):  # a tie is kept as either
        assert keeps.changed("kv.x", rows(4.25), rows(half)) == due
    one = rows(4.0, 4.0)
    one[1, 0, 1] = 4.5
    assert keeps.changed("kv.x", rows(4.0, 4.0), one) == 1


def test_a_cache_in_bfloat16_is_asked_in_its_own_steps(keeps):
    bfloat = ml_dtypes.bfloat16
    assert keeps.changed("kv.x", rows(4.2, 5.0), rows(4.0, 5.0, dtype=bfloat)) is None
    near = 4.0 + 2.0**-5  # the next bfloat16 behind 4
    assert keeps.changed("kv.x", rows(4.0), rows(near, dtype=bfloat)) is None
    assert keeps.changed("kv.x", rows(4.0), rows(near)) == 0


def test_rows_of_another_shape_or_of_no_format_are_the_same_by_their_bits(keeps):
    for fewer in (rows(4.0), rows(4.0, 4.0, 4.0)):
        assert keeps.changed("kv.x", rows(4.0, 4.0), fewer) == 0
    assert keeps.changed("kv.none", rows(4.2, 4.3), rows(4.2, 4.3)) is None
    assert keeps.changed("kv.none", rows(4.2, 4.3), rows(4.2, 4.5)) == 1


def test_a_bound_is_the_ties_own_or_that_of_float32(keeps):
    assert (keeps.bound("kv.x"), keeps.bound("kv.none")) == (0.25, FLOAT32_BOUND)
    assert kept_rows(keeps.noise) == keeps and kept_rows(SimpleNamespace(flips=())) is None
