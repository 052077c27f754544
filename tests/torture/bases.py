"""Clean evidence to spoil: a hand-made golden and run, made in milliseconds, and a golden and run of the tiny pair."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cached_property
from pathlib import Path

from parity.golden.smaller import Smaller, smaller_golden
from parity.golden.store import Dump
from tests.meta.dumps import clean, write
from tests.meta.smaller import smaller_run
from tests.meta.worlds import Size
from tests.torture.child import ROOT

SIZE = Size(prompts=(14, 9))
TINY = ROOT / "fixtures" / "tiny"
CONSTANTS = {"rms_norm_eps": 1e-5, "sliding_window": 32, "hidden_act": "silu", "eos_token_id": [2, 5]}
DIGEST = re.compile(r'"digest":\s*"([0-9a-f]{64})"\s*\}\s*\Z')


class Bases:
    """Both pairs of folders, made when they are asked for; kept for as long as the sources stay what they are."""

    def __init__(self, folder: Path):
        self.folder = folder / _sources()
        for old in set(folder.glob("*")) - {self.folder}:
            shutil.rmtree(old, ignore_errors=True)

    @cached_property
    def small(self) -> Path:
        """A folder with golden/ and run/ of a synthetic world."""
        folder = self.folder / "small"
        if not folder.exists():
            write(clean(SIZE), folder)
            for side in ("golden", "run"):
                _says(folder / side)
        return folder

    @cached_property
    def less(self) -> Path:
        """The same two sides, each of which keeps sketches and best logits."""
        folder = self.folder / "less"
        if not folder.exists():
            made = self.folder / "less.partial"
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir(parents=True)
            asked = Smaller(32, logits="top:16")
            smaller_golden(Dump(self.small / "golden"), made / "golden", asked)
            smaller_run(Dump(self.small / "run"), made / "run", asked)
            made.rename(folder)
        return folder

    @cached_property
    def real(self) -> Path:
        """A folder with golden/ (two chat prompts, 12 tokens) and run/ (numpy, bfloat16, chained) of the tiny pair."""
        folder = self.folder / "real"
        if not (folder / "run").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            prompts = folder / "two.jsonl"
            prompts.write_text("\n".join((TINY / "prompts/chat.jsonl").read_text().splitlines()[:2]) + "\n")
            _parity("dump-golden", "--prompts", prompts, "-k", 4, "--max-new-tokens", 12, "--out", folder / "golden")
            _parity("run", "--golden", folder / "golden", "--out", folder / "run")
        return folder


def _says(side: Path) -> None:
    """What was read of config.json, the same on both sides."""
    data = manifest(side)
    for part in ("target", "drafter"):
        data["model"][part]["constants"] = CONSTANTS
    rewrite(side / "manifest.json", sealed(data))


def _sources() -> str:
    """A digest of everything that makes the evidence: a golden of other sources is stale."""
    total = hashlib.sha256()
    for part in ("parity", "references", "device", "tests/meta", "tests/torture/bases.py"):
        for path in sorted((ROOT / part).rglob("*.py")) or [ROOT / part]:
            total.update(path.read_bytes())
    return total.hexdigest()[:16]


def _parity(*arguments: object) -> None:
    subprocess.run(
        [sys.executable, "-m", "parity", *map(str, arguments)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
    )


def lay_out(base: Path, folder: Path) -> Path:
    """A copy of golden and run below `folder`/work, to be spoilt: hard links until `rewrite` writes a file anew."""
    work = folder / "work"
    for path in base.rglob("*"):
        to = work / path.relative_to(base)
        if path.is_dir():
            to.mkdir(parents=True, exist_ok=True)
        else:
            to.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, to)
    return work


def rewrite(path: Path, content: bytes | str) -> None:
    """Put a new file in the place of a link."""
    path.unlink(missing_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))


def sealed(text: str | dict) -> str:
    """A manifest's text with the digest of its own bytes made right, as somebody would who knows the format."""
    text = text if isinstance(text, str) else json.dumps(text)
    if not (last := DIGEST.search(text)):
        return text
    first, end = last.span(1)
    data = (text[:first] + "0" * 64 + text[end:]).encode("utf-8", "surrogatepass")
    return text[:first] + hashlib.sha256(data).hexdigest() + text[end:]


def manifest(folder: Path) -> dict:
    """manifest.json as plain data."""
    return json.loads((folder / "manifest.json").read_bytes())
