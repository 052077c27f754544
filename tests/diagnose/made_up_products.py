"""A product that is made up, and what a device gives that computes it otherwise."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tests.diagnose.made_up_rows import ROWS, WIDTH, random


@dataclass(frozen=True)
class Toy:
    """Four heads of 16 by one weight, and a bias."""

    x: np.ndarray
    weight: np.ndarray
    back: None = None
    inside: str = ""
    led: None = None
    keys: None = None
    places: None = None
    table: None = None
    parts: tuple = (*((f"head {one}", 16 * one, 16 * one + 16) for one in range(4)), ("the bias", 64, 65))

    def others(self):
        yield "the next row", np.roll(self.x, -1, axis=0).__getitem__

    def beside(self):
        yield "layer 3", random(*self.weight.shape, seed=9)


X = np.concatenate([random(ROWS, 64, seed=6), np.ones((ROWS, 1))], axis=1)


W = random(WIDTH, 65, seed=7)


PRODUCT = Toy(X, W)


WHOLE = X @ W.T


def without(first, last, factor=-1.0):
    return WHOLE + factor * X[:, first:last] @ W[:, first:last].T


def without_columns(first, last):
    """The same columns of every head."""
    columns = np.concatenate([np.arange(16 * head + first, 16 * head + last) for head in range(4)])
    return WHOLE - X[:, columns] @ W[:, columns].T


def by_other_weight():
    other = W.copy()
    other[:, 20:30] = random(WIDTH, 10, seed=8)
    return X @ other.T


def entered_otherwise(columns=np.s_[16:32]):
    x = X.copy()
    x[:, columns] = random(*x[:, columns].shape, seed=8)
    return x @ W.T


def in_fp8_but_for_the_last_head():
    x = X.copy()
    x[:, :48] = X[:, :48].astype(np.float32).astype(ml_dtypes.float8_e5m2).astype(np.float64)
    return x @ W.T


def of_the_next_row(columns=np.s_[:]):
    x = X.copy()
    x[:, columns] = np.roll(X, -1, axis=0)[:, columns]
    return x @ W.T


def in_order(order):
    x = X.copy()
    for head in range(4):
        x[:, 16 * head : 16 * head + 16] = X[:, 16 * head : 16 * head + 16][:, order]
    return x @ W.T


def by_the_weight_of_layer_3(bias):
    weight = random(*W.shape, seed=9)
    return X @ np.concatenate((weight[:, :64], (weight if bias else W)[:, 64:]), axis=1).T


def by_column():
    """Of a norm's weight every other number is 0, the others are random ones."""
    factors = np.random.default_rng(8).uniform(0.5, 1.5, 65) * (np.arange(65) % 2)
    factors[64] = 1.0
    return (X * factors) @ W.T
