"""Tap layers between numberings: the same streams under every name, and what a numbering cannot say."""

from __future__ import annotations

import pytest

from parity.errors import UsageError
from parity.taps import CONVENTIONS, default, in_of, numbered


@pytest.mark.parametrize("layers", [24, 36])
@pytest.mark.parametrize("name", [name for name, one in CONVENTIONS.items() if one.default])
def test_every_projects_default_taps_are_the_same_three_streams(name, layers):
    assert default(name, layers) == (2, layers // 2, layers - 3)


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("vllm", (2, 12, 21)),
        ("hf", (2, 12, 21)),
        ("nxdi", (1, 11, 20)),
        ("sglang", (1, 11, 20)),
        ("automodel", (1, 11, 20)),
        ("nkipy", (1, 11, 20)),
        ("in_of", (2, 12, 21)),
        ("out_of", (1, 11, 20)),
    ],
)
def test_published_ids_of_24_layers(name, ids):
    assert in_of(name, ids, 24) == (2, 12, 21)
    assert numbered(name, (2, 12, 21), 24) == ids


def test_the_last_hidden_state_is_no_tap():
    assert in_of("hf", (-2,), 24) == (23,)
    for last in (24, -1):
        with pytest.raises(UsageError, match="behind the final norm"):
            in_of("hf", (last,), 24)


def test_vllm_loses_the_order():
    assert in_of("vllm", (21, 2, 12, 2), 24) == (2, 12, 21)
    assert in_of("nkipy", (20, 1, 11), 24) == (21, 2, 12)
    with pytest.raises(UsageError, match="sorts"):
        numbered("vllm", (21, 2, 12), 24)


@pytest.mark.parametrize(("name", "bad"), [("vllm", 25), ("nkipy", 24), ("nkipy", -1), ("hf", 25)])
def test_a_layer_that_is_not_there(name, bad):
    with pytest.raises(UsageError, match="a target of 24 layers has 0 to"):
        in_of(name, (bad,), 24)


def test_an_unknown_numbering_is_named(parity):
    found = parity("taps", "--from", "mine", "--layers", 24, 1)
    assert found.code == 2 and "'mine' is no known numbering" in found.err


def test_the_command_says_them_all(parity):
    found = parity("taps", "--from", "nkipy", "--layers", 24, 1, 11, 20)
    lines = dict(line.split(maxsplit=1) for line in found.out.splitlines())
    assert found.code == 0 and lines["vllm"] == "2, 12, 21" and lines["sglang"] == "1, 11, 20"
