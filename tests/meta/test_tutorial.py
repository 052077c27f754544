"""docs/tutorial.md: each of its commands runs, in order, and prints the lines that the page shows.

On two prompts in place of the demo's 24, so numbers are compared as numbers of the same form.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from types import ModuleType

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGE, PORT = ROOT / "docs/tutorial.md", ROOT / "docs/tutorial/port.py"
NOT_RUN = ("make demo", "source .venv/bin/activate", "parity gate")
"""The demo on prompts of its own runs in tests/package, the quick look in tests/gates."""


def blocks() -> list[tuple[str, str]]:
    return [
        (token.info, token.content) for token in MarkdownIt().parse(PAGE.read_text()) if token.content and token.block
    ]


def shown(line: str, out: str) -> bool:
    """Whether a line of the page is printed: `…` stands for anything, a number for any number."""
    parts = re.split(r"(…|\d+(?:\.\d+)?)", line.strip())
    pattern = "".join({"…": ".*"}.get(part, r"[\d.]+") if n % 2 else re.escape(part) for n, part in enumerate(parts))
    pattern = re.sub("RUN|GOLDEN", r"\\S+", pattern)
    return re.search(rf"^\s*{pattern}", out, re.MULTILINE) is not None


def mended(diff: str) -> ModuleType:
    """The port with the lines of a diff exchanged."""
    wrong, right = (next(line[1:] for line in diff.splitlines() if line[0] == sign) for sign in "-+")
    source = PORT.read_text()
    assert source.count(wrong) == 1
    module = ModuleType("docs.tutorial.port")
    exec(compile(source.replace(wrong, right), PORT, "exec"), module.__dict__)
    return module


def test_the_tutorial_finds_and_mends_the_bug_word_for_word(parity, small_golden, monkeypatch):
    monkeypatch.chdir(ROOT)
    shutil.copytree(small_golden.folder, parity.home / "goldens" / "demo")
    out, said, checked = "", "", []
    for kind, content in blocks():
        if kind == "diff":
            monkeypatch.setitem(sys.modules, "docs.tutorial.port", mended(content))
        elif kind == "text" and said.startswith("parity"):
            missing = [line for line in content.splitlines() if not shown(line, out)]
            assert not missing, f"{said} printed\n{out}"
            checked.append(said)
        elif kind == "" and content.startswith(("parity", "make", "source")):
            said = content.strip()
            if said.startswith(NOT_RUN):
                continue
            if "RUN" in said:
                said = re.search(r"^next +(parity .*)$", out, re.MULTILINE)[1]
            out = parity(*shlex.split(said)[1:]).out
    assert [said.split()[1] for said in checked] == ["check-device", "diff", "diagnose", "diff"]


def test_a_line_that_is_not_printed_is_missed():
    out = "what           drafter.logits: l2 94.4 x noise (ok to 1.5)\n"
    assert shown("what           drafter.logits: l2 73.2 x noise …", out)
    assert not shown("what           drafter.taps: l2 73.2 x noise …", out) and not shown("chained verdict: pass", out)
