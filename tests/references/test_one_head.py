"""Changes of a single head: it moves, no other does, and by what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from parity.references.products.attention.changes import of_heads
from parity.references.products.attention.operands import Pass

HEADS, GROUPS = 4, 2


@pytest.fixture(scope="module")
def one() -> Pass:
    """Three rows of five keys, seen causally, by four heads of two groups."""
    torch.manual_seed(0)
    q, k, v = torch.randn(HEADS, 3, 8), torch.randn(GROUPS, 5, 8), torch.randn(GROUPS, 5, 8)
    return Pass(q.double(), k.double(), v.double(), torch.ones(3, 5).tril(2).bool(), torch.randn(HEADS).double())


def test_each_change_of_a_head_moves_that_head_alone(one):
    changes = dict(of_heads(HEADS, GROUPS, sinks=True))
    assert len(changes) == HEADS * 3 + 2 * (HEADS - 1)
    for says, change in changes.items():
        moved = (change(one).mixed() - one.mixed()).abs().amax((0, 2))
        assert (moved > 0).nonzero().flatten().tolist() == [int(says.split()[1])], says
    assert not any("sink" in says for says, _ in of_heads(HEADS, GROUPS, sinks=False))


def test_what_a_head_gives_instead(one):
    changes = {says: change(one).mixed()[:, 1] for says, change in of_heads(HEADS, GROUPS, sinks=True)}
    bare, other = replace(one, sinks=None), replace(one, sinks=one.sinks.roll(1))
    exchanged = replace(one, k=one.k.flip(0), v=one.v.flip(0))
    assert not changes["head 1 is missing"].any()
    for says, same in {
        "head 1 has no sink": bare,
        "head 1 has the sink of head 0": other,
        "head 1 takes kv group 1": exchanged,
    }.items():
        assert torch.allclose(changes[says], same.mixed()[:, 1]), says
