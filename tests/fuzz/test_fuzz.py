"""Hypothesis over the same readers: whatever is read, it is refused in one sentence. PARITY_FUZZ=deep looks longer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS, refused_or_read

DEEP = os.environ.get("PARITY_FUZZ") == "deep"
FOUND = sorted((Path(__file__).parent / "found").glob("*"))

look = settings(
    max_examples=5000 if DEEP else 25, deadline=None, database=None, derandomize=not DEEP,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from([2**31, 2**63, 10**400, -1, 0]), st.floats(),
    st.text(max_size=8),
    st.sampled_from(["../x", "/dev/zero", "\x1b[2J", "[/x]", "p0/r0/x", "(a+)+$", "\ud800", "{k}", "in_of[{k}]", ""]),
    st.lists(st.integers(0, 3), max_size=3), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip


@st.composite
def damaged(draw, whole: bytes) -> bytes:
    """Bytes of a whole file, some of them changed, cut out or put twice."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        end = min(len(data), at + draw(st.integers(0, 40)))
        data[at:end] = (
            draw(st.sampled_from([b"", bytes(data[at:end]) * 2]))
            if draw(st.booleans())
            else draw(st.binary(max_size=8))
        )
    return bytes(data)


@st.composite
def edited(draw, whole: bytes) -> bytes:
    """JSON with one value anywhere replaced."""
    raw = json.loads(whole)
    node = raw
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = draw(st.sampled_from(keys))
        if not (isinstance(node[key], dict | list) and node[key] and draw(st.integers(0, 4))):
            break
        node = node[key]
    node[key] = draw(ODD)
    return json.dumps(raw).encode()


@pytest.mark.parametrize("name", TARGETS)
@look
@given(st.data())
def test_damaged_bytes_are_refused_in_a_sentence(name, data):
    refused_or_read(name, data.draw(damaged(data.draw(st.sampled_from(seeds()[name])))))


@pytest.mark.parametrize("name", ["manifest", "results"])
@look
@given(st.data())
def test_an_odd_value_is_refused_in_a_sentence(name, data):
    refused_or_read(name, data.draw(edited(seeds()[name][0])))


def test_a_command_line_leaves_the_process_as_it_was(monkeypatch):
    monkeypatch.delenv("PARITY_HOME", raising=False)
    before = Path.cwd(), dict(os.environ)
    refused_or_read("arguments", b"policy\0nothing")
    assert (Path.cwd(), dict(os.environ)) == before


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_what_fuzzing_found(path):
    """Files are named TARGET-what."""
    refused_or_read(path.name.partition("-")[0], path.read_bytes())
