"""What a `--stage` stands for."""

from __future__ import annotations

import pytest

from parity.stages import declared, select


@pytest.mark.parametrize(
    ("glob", "named"),
    [
        ("out", "target.layers.*.out drafter.layers.*.out"),
        ("target.layers.*.out", "target.layers.*.out"),
        ("tokens", "target.tokens verify.tokens"),
        ("logits", "target.logits verify.logits drafter.logits"),
        ("k", "target.layers.*.k"),
        ("length", "accept.length"),
        ("kv.*.k", "kv.target.*.k kv.drafter.*.k"),
        ("rollback", "kv.target.*.k kv.target.*.v kv.target.length kv.drafter.*.k kv.drafter.*.v kv.drafter.length"),
    ],
)
def test_a_word_stands_for_these_families(glob, named):
    names = declared(3, 2)
    chosen = {names[name].stage.template.replace("{l}", "*") for name in select([glob], names)}
    assert chosen == set(named.split())
