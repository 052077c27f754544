"""docs/tutorial.md: each of its commands runs, in order, and prints the lines that the page shows.

With fewer tokens and shorter prompts than on the page, so a number stands for any number.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

from markdown_it import MarkdownIt

from tests.sample import by_night, cut

ROOT = Path(__file__).parents[2]
PAGE, PORT = ROOT / "docs/tutorial.md", ROOT / "docs/tutorial/port.py"
NOT_RUN = ("make", "source", "head", "parity gate")
"""The demo runs in tests/package, the quick look in tests/gates; `head` makes the prompts of the small golden."""


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


@by_night
def test_the_tutorial_finds_and_mends_the_bug_word_for_word(parity, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    lines = (ROOT / "fixtures/tiny/prompts/chat.jsonl").read_text().splitlines()
    (tmp_path / "two.jsonl").write_text("\n".join(map(cut, lines[:2])))
    out, said, checked = "", "", []
    for kind, content in blocks():
        if kind == "diff":
            monkeypatch.setitem(sys.modules, "docs.tutorial.port", mended(content))
        elif kind == "text" and said.startswith("parity"):
            missing = [line for line in content.splitlines() if not shown(line, out)]
            assert not missing, f"{said} printed\n{out}"
            checked.append(said)
        elif kind == "" and content.startswith(("parity", "make", "source")):
            for said in content.strip().splitlines():
                if said.startswith(NOT_RUN):
                    continue
                if "RUN" in said:
                    said = re.search(r"^next +(parity .*)$", out, re.MULTILINE)[1]
                typed = said.replace(".parity/two.jsonl", str(tmp_path / "two.jsonl")).replace("s 24", "s 12")
                out = parity(*shlex.split(typed)[1:]).out
    assert [said.split()[1] for said in checked] == ["dump-golden", "check-device", "diff", "diagnose", "diff"]


def test_a_line_that_is_not_printed_is_missed():
    out = "what           drafter.logits: l2 94.4 x noise (ok to 1.5)\n"
    assert shown("what           drafter.logits: l2 73.2 x noise …", out)
    assert not shown("what           drafter.taps: l2 73.2 x noise …", out) and not shown("chained verdict: pass", out)
