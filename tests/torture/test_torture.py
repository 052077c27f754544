"""The attack can go red: planted holes are counted, and each is printed with the command that repeats it."""

from __future__ import annotations

import os
import signal
import time
from random import Random

import pytest

from tests.torture import child
from tests.torture.attempts import (
    ACCEPTED,
    ESCAPES,
    EXECUTED,
    HANG,
    MISJUDGED,
    NOT_ACCEPTED,
    OUTSIDE,
    SAME,
    TRACEBACK,
    Attempt,
    judged,
)  # fmt: skip
from tests.torture.bases import Bases, lay_out
from tests.torture.classes import CLASSES

DIFF = ("diff", "run", "--golden", "golden")


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    return Bases(tmp_path_factory.mktemp("bases"))


@pytest.fixture
def counted(bases, tmp_path):
    """The counts that a comparison of clean evidence raises when `before` was planted."""

    def attempt(before=None, allowed=SAME, seconds=20.0):
        lay_out(bases.small, tmp_path)
        for part in ("outside", "tmp"):
            (tmp_path / part).mkdir()
        (tmp_path / "outside" / "secret").write_text("not yours")
        (tmp_path / "work" / "code.py").write_text("")
        ended = child.run(DIFF, tmp_path, seconds, False, before)
        return {what for what, _ in judged(Attempt("", allowed, DIFF, seconds=seconds), ended)}

    return attempt


def test_clean_evidence_raises_no_count(counted):
    assert counted() == set()


@pytest.mark.parametrize(
    ("plant", "count"),
    [
        (lambda: print("\x1b[31m"), ESCAPES),
        (lambda: exec(compile("", os.path.abspath("code.py"), "exec")), EXECUTED),
        (lambda: open("../outside/secret").close(), OUTSIDE),
        (lambda: print("parity: internal error"), TRACEBACK),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), TRACEBACK),
        (lambda: os._exit(3), MISJUDGED),
    ],
)
def test_what_a_command_does_is_counted(counted, plant, count):
    assert count in counted(plant)


def test_a_pass_that_is_not_allowed_is_counted(counted):
    assert counted(allowed=NOT_ACCEPTED) == {ACCEPTED}


def test_a_hang_is_counted(counted):
    assert counted(lambda: time.sleep(60), seconds=0.2) == {HANG}


@pytest.mark.parametrize("name", ["fields", "shards", "edits"])
def test_an_attempt_depends_on_its_seed_and_number_alone(bases, tmp_path, name):
    attack, texts = CLASSES[name](bases), []
    for place in "ab":
        (tmp_path / place).mkdir()
        attack.prepare(5, Random("1 x 5"), tmp_path / place)
        texts.append({path.name: path.read_bytes() for path in (tmp_path / place / "work" / "run").iterdir()})
    assert texts[0] == texts[1]
