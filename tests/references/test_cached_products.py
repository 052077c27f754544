"""What is kept in a cache is a product of what enters its projections: row by row what the golden's cache holds."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from parity.fault_choice import PROMPTS
from parity.references.prompts import read_prompts
from parity.trace import ForcingTrace
from tests.references.hypothesis_case import Case
from tests.references.test_products import every_change
from tests.shallow import cut_target

CACHES = (
    *(("drafter", f"kv.{name}") for name in ("target.1.k", "target.0.v", "drafter.0.k", "drafter.0.v", "drafter.1.k")),
    *(("eagle3", f"kv.drafter.0.{part}") for part in "kv"),
    ("draft-model", "kv.drafter.1.k"),
    ("dflash", "kv.drafter.0.v"),
)
ROUNDS = 3


@pytest.fixture(scope="module")
def case_of(tiny, tmp_path_factory):
    """A family's case on a target of three layers."""

    @cache
    def of(family):
        ids = dict(read_prompts(tiny / "prompts/chat.jsonl", tiny / "target", 1280))[PROMPTS["draft-model"][0]]
        folder = tmp_path_factory.mktemp("pair")
        cut_target(tiny, folder, family)
        return Case(folder, ids=list(ids), budget=14, drafter=family)

    return of


def products(case, stage):
    trace = ForcingTrace(case.names, lambda round_, stage: case.truth.get((round_, stage)), frozenset(case.names))
    return case.counterfactuals.products(stage, case.ids, case.budget, trace, ROUNDS)


@pytest.mark.parametrize(("family", "stage"), CACHES)
def test_rows_of_a_cache_are_made_of_what_enters_their_projection(family, stage, case_of):
    case = case_of(family)
    made = products(case, stage)
    (plain,) = [one for one in made if one.weight is not None and not one.inside.startswith("the embedding")]
    held = np.stack([case.truth[round_, stage][slot].ravel() for round_, slot in plain.places.tolist()])
    numbers = np.arange(len(held))
    rows = held.astype(np.float64) if plain.back is None else plain.back(held.astype(np.float64), numbers)
    assert np.allclose(plain.x @ plain.weight.T, rows, atol=1e-3)
    assert {round_ for round_, _ in plain.places.tolist()} == {0, 1, 2, 3}
    kept = [len(case.truth[round_, stage]) for round_ in range(ROUNDS + 1)]
    assert [slot for _, slot in plain.places.tolist()] == [*range(kept[-1])]


def test_a_drafters_embeddings_are_led_back_from_its_values(case_of):
    values, embedded = products(case_of("drafter"), "kv.drafter.0.v")
    numbers = np.arange(len(values.x))
    assert np.allclose(embedded.back(values.x @ values.weight.T, numbers), embedded.x, atol=1e-3)
    ids, held = embedded.table
    assert np.allclose(held[ids], embedded.x, atol=1e-5) and len(np.unique(ids)) > 30
    assert {name for name, *_ in values.parts} == {"what the embedding gives", "what the hidden gives"}
    changed = every_change(values)
    assert {
        "the embedding's norm of rows in e4m3",
        "the hidden's norm: no norm",
        "both norms by one mean square",
    } <= set(changed)
    size = embedded.x.shape[1]
    low = changed["the embedding's norm of rows in e4m3"]
    assert np.allclose(low[:, size:], values.x[:, size:], atol=1e-6)
    assert not np.allclose(low[:, :size], values.x[:, :size], atol=1e-3)


def test_keys_turn_by_the_position_of_the_row_that_is_kept(case_of):
    rotated, plain = products(case_of("drafter"), "kv.drafter.0.k")
    changed = every_change(rotated)
    assert np.allclose(changed["not rotated"], plain.x @ plain.weight.T, atol=1e-3)
    far = [
        says for says, rows in changed.items() if says.startswith("turned") and np.allclose(rows, rotated.x, atol=1e-6)
    ]
    assert all("modulo" in says for says in far)
