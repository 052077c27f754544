"""A device without weights, which shows what travels to a tap and back."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from enum import IntEnum
from importlib import import_module

import ml_dtypes
import numpy as np

from parity.errors import NotOffered, UsageError
from parity.seam import Description, RankTap, RowTap
from tests.faults import ways
from tests.faults.ways import raises


class Version(str):
    """As torch has it: a string that is more."""


class Size(IntEnum):
    """A number that prints as a word."""

    HEAD = 32


CONSTANTS = {
    "target": {"rms_norm_eps": 1e-5, "truncate": False, "layer_types": ["full"], "head_dim": Size.HEAD},
    "drafter": {},
}


class Sly(UsageError):
    """An error of parity with an exit code of its own."""

    exit_code = 0


WAYS = ways.WAYS | {
    "": lambda: None,
    "references": lambda: import_module("parity." + "references.kv_cache"),
    "sly": lambda: raises(Sly("made up")),
    "usage": lambda: raises(UsageError("does not fit")),
    "absent": lambda: raises(NotOffered("has none")),
    "value": lambda: raises(ValueError("512 positions")),
    "nonsense": lambda: [os.write(fd, b"\xff" * 64) for fd in range(3, 1024) if _is_socket(fd)] and time.sleep(60),
}


def _is_socket(fd):
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False


class Echo:
    """Every verb does what `way` says; `verify` hands three kinds of arrays to the tap and returns what came back."""

    def __init__(self, k, precision, way):
        self.k, self.precision, self.way = k, precision, way

    def describe(self):
        constants = {"target": {"head_dim": object()}} if self.way == "opaque" else CONSTANTS
        versions = {"numpy": Version("2")}
        return Description(
            "echo", self.precision, 1, 1, self.k, 64, (7,), versions, ("tests.process.echo",), {"a": "b"}, constants
        )

    def prefill(self, prompt_ids, max_new_tokens, tap):
        if self.way == "child":
            return np.int64(subprocess.Popen(["sleep", "47"]).pid)
        WAYS[self.way]()
        return np.int64(sum(prompt_ids) + max_new_tokens)

    def draft(self, tap):
        return object() if self.way == "object" else np.arange(self.k)

    def verify(self, draft_tokens, tap):
        given = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)[:, ::-1]
        same = tap("same", given)
        changed = tap("changed", given)
        empty = tap("empty", np.empty((0, 3), np.float32))
        shards = tap.ranks("ranks", [given, given + given], "sum") if isinstance(tap, RankTap) else "no ranks"
        rows = tap.rows("rows", given, 2, 4) if isinstance(tap, RowTap) else "no rows"
        return [same is given, str(changed.dtype), changed, changed.flags.writeable, empty, shards, rows, draft_tokens]

    def commit(self, draft_tokens, verify_tokens, tap):
        try:
            tap("raises", np.zeros(2))
        except Exception:
            if self.way == "swallows":
                return np.array([1])
            raise


class Poisoned(Echo):
    """One with rows to poison."""

    def poison(self, value):
        self.value = value


def echo(target, drafter, k, precision, way="", poisons=0):
    return (Poisoned if poisons else Echo)(k, precision, way)


def rotate(folder, side, x, positions):
    return x * positions[:, None, None].astype(np.float32)
