"""Weights that follow no rule, and errors that a token brings along."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.diagnose.components import by_token
from parity.diagnose.components.by_token import in_tokens
from parity.diagnose.components.drawn import in_drawn_weights
from parity.diagnose.components.wrong import Component, WrongRows, preferred
from tests.diagnose.made_up_rows import random, rows_of, wrong

ROWS, INPUTS, OUTPUTS = 48, 64, 96
X = random(ROWS, INPUTS, seed=21) * np.geomspace(1.0, 0.05, INPUTS)
"""Inputs of which some directions hold much more than others, as any that were computed do."""

W = random(OUTPUTS, INPUTS, seed=22)
NOISE = random(OUTPUTS, INPUTS, seed=23)
DRAWN = random(OUTPUTS, INPUTS, seed=24)


def told(device):
    found = in_drawn_weights(wrong(X @ W.T, device), X, W)
    return str(found) if found is not None and found.whole else ""


def test_another_weight_is_told_with_its_size():
    assert told(X @ (0.3 * DRAWN).T).startswith("another weight, 0.3")


def test_noise_on_each_number_of_a_weight_is_told_with_its_size():
    assert told(X @ (W + 0.05 * NOISE).T).startswith("each number of the weight is off by chance, by 5.")


def test_a_reading_that_leaves_nothing_comes_before_numbers_off_by_chance():
    found = in_drawn_weights(wrong(X @ W.T, X @ (W + 0.05 * NOISE).T), X, W)
    assert preferred(Component("the weight in int8 with one scale", 0.9, 1.2)) > preferred(found)


OTHERWISE = {
    "outputs in another order": (X @ W.T)[:, np.random.default_rng(5).permutation(OUTPUTS)],
    "inputs that are off by chance": (X + 0.02 * random(ROWS, INPUTS, seed=25)) @ W.T,
    "a few inputs by other numbers": X @ (W + 0.1 * np.where(np.arange(INPUTS) < 3, DRAWN, 0)).T,
    "rows that are off by chance": X @ W.T + 0.1 * random(ROWS, OUTPUTS, seed=26),
    "a weight that is half another": X @ (W + DRAWN).T,
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_what_is_no_draw_is_not_called_one(what):
    assert told(OTHERWISE[what]) == ""


def test_inputs_of_one_size_in_all_directions_tell_nothing():
    x = np.linalg.qr(random(ROWS, INPUTS, seed=27).T)[0].T
    assert in_drawn_weights(wrong(x @ W.T, x @ DRAWN.T), x, W) is None


TOKENS = np.arange(ROWS) % 7
HIDDEN = random(ROWS, OUTPUTS, seed=28)
EMBEDDED, OTHER = random(7, OUTPUTS, seed=29), random(7, OUTPUTS, seed=30)


def of_tokens(monkeypatch, golden, device, tokens=TOKENS):
    monkeypatch.setattr(by_token, "entered_tokens", lambda _, rows: tokens[rows.position])
    rows = WrongRows.of(rows_of(golden, device), "bfloat16")
    found = in_tokens(rows, SimpleNamespace())
    return str(found) if found is not None and found.whole else ""


def test_an_error_that_a_token_brings_along_is_its_embeddings(monkeypatch):
    golden, device = HIDDEN + EMBEDDED[TOKENS], HIDDEN + OTHER[TOKENS]
    assert of_tokens(monkeypatch, golden, device).startswith("each token has an error of its own")


def test_an_error_of_rows_is_no_tokens(monkeypatch):
    golden = HIDDEN + EMBEDDED[TOKENS]
    assert of_tokens(monkeypatch, golden, golden + 0.1 * random(ROWS, OUTPUTS, seed=31)) == ""


def test_rows_that_are_the_tokens_alone_tell_nothing_of_it(monkeypatch):
    assert of_tokens(monkeypatch, EMBEDDED[TOKENS], OTHER[TOKENS]) == ""


def test_tokens_that_stand_at_one_place_each_tell_nothing(monkeypatch):
    golden, device = HIDDEN, HIDDEN + random(ROWS, OUTPUTS, seed=32)
    assert of_tokens(monkeypatch, golden, device, np.arange(ROWS)) == ""


def test_tokens_of_a_few_of_the_wrong_rows_tell_nothing_of_all(monkeypatch):
    golden, device = HIDDEN + EMBEDDED[TOKENS], HIDDEN + OTHER[TOKENS]
    apart = np.where(np.arange(ROWS) < 21, TOKENS, 100 + np.arange(ROWS))
    assert of_tokens(monkeypatch, golden, device, apart) == ""
    apart = np.where(np.arange(ROWS) < 28, TOKENS, 100 + np.arange(ROWS))
    assert of_tokens(monkeypatch, golden, device, apart).startswith("each token has an error of its own")
