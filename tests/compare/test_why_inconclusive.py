"""Why a run as a whole proves less than its stages say: caches of a format that nothing shows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parity.compare.inconclusive import why_inconclusive
from parity.stages import declared

NAMES = declared(2, 2)
CONTENTS = ["kv.target.0.k", "kv.drafter.1.v"]


def said(kv_cache: str, names: list[str], precision: str = "bfloat16", whole: bool = True) -> list[str]:
    """The sentences, one for each side of whose caches a run says nothing."""
    golden = SimpleNamespace(
        declared=NAMES, manifest=SimpleNamespace(case=SimpleNamespace(kv_cache=kv_cache, prompts=[]))
    )
    run = SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(precision=precision, prompts=[])))
    run.sides = (run,)
    return [*why_inconclusive(golden, run, ["target.logits", *names], {}, whole)]


@pytest.mark.parametrize(
    ("kv_cache", "names", "sides"),
    [
        ("", [], 0),
        ("fp8_e4m3", CONTENTS, 0),
        ("fp8_e4m3", [], 2),
        ("fp8_e4m3", ["target.layers.0.out", "kv.target.length", "kv.drafter.length"], 2),
        ("fp8_e4m3", CONTENTS[:1], 1),
        ("target=fp8_e5m2", CONTENTS[1:], 1),
        ("drafter=fp8_e5m2", CONTENTS[1:], 0),
    ],
)
def test_caches_of_a_format_have_to_be_shown(kv_cache, names, sides):
    assert len(said(kv_cache, names)) == sides


def test_the_sentence_names_the_format_and_what_would_tell():
    (why,) = said("target=fp8_e5m2", [])
    assert why == (
        "whether the target's caches are kept in fp8_e5m2 shows in no stage that this run shows: kv.target.* would tell"
    )


def test_float32_and_a_part_of_the_stages_are_not_asked():
    assert said("fp8_e4m3", [], precision="float32") == said("fp8_e4m3", [], whole=False) == []
