"""The documentation: no link leads nowhere, every page is on the site, every command in it is one of parity's."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from parity.cli import cli

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
AT_ROOT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "fixtures/README.md", "benchmarks/README.md")
PAGES = [*(ROOT / name for name in AT_ROOT), *sorted(DOCS.rglob("*.md"))]
ENDS = re.compile(r"""((?:"[^"]*"|[^"])*?)(?:\s(?:&&|\|\||[|;>]|2>|#|\\$).*|&)?""")
"""A line without what is the shell's, or a remark, outside quotation marks."""


def tokens(text: str) -> list[Token]:
    return MarkdownIt().enable("table").parse(text)


def flat(text: str) -> Iterator[Token]:
    for token in tokens(text):
        yield token
        yield from token.children or ()


def anchors(text: str) -> set[str]:
    """Those of its headings, as GitHub and the site make them."""
    found: set[str] = set()
    parsed = tokens(text)
    for before, token in pairwise(parsed):
        if before.type == "heading_open":
            words = "".join(part.content for part in token.children or () if part.type in ("text", "code_inline"))
            found.add(re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-"))
    return found


def broken_links(at: Path, text: str) -> Iterator[str]:
    for token in flat(text):
        if token.type != "link_open" or re.match("https?:|mailto:", str(token.attrs["href"])):
            continue
        file, _, anchor = str(token.attrs["href"]).partition("#")
        there = (at.parent / file).resolve() if file else at
        if not there.exists():
            yield f"{at.relative_to(ROOT)}: {file} is not there"
        elif anchor and anchor not in anchors(text if there == at else there.read_text()):
            yield f"{at.relative_to(ROOT)}: {file} has no #{anchor}"


def commands(text: str) -> Iterator[tuple[str, bool]]:
    """Every `parity …` of blocks and of running text; whether it stands in a block, to be typed as it is."""
    for token in flat(text):
        if token.type in ("fence", "code_block") and token.info in ("", "sh", "bash", "console"):
            for line in token.content.replace("\\\n", " ").splitlines():
                for part in line.split("&&"):
                    if found := re.match(
                        r"\s*(?:\$ )?(?:\S+=\S* )*(?:\S*/)?(?:python -m )?parity +(?=[a-z-])(.*)", part
                    ):
                        yield cut(found[1]), True
        elif token.type == "code_inline" and re.match(r"parity [a-z-]", token.content):
            yield cut(token.content.removeprefix("parity ")), False


def cut(line: str) -> str:
    found = ENDS.fullmatch(line)
    return found[1] if found else line


def mistake(line: str, typed: bool) -> str:
    """What the command line would refuse of it: '' if nothing. Names in capitals stand for anything."""
    words = [word.strip("[]") for word in shlex.split(line) if word not in ("…", "...", "[", "]")]
    command: click.Command = cli
    context = click.Context(cli, info_name="parity")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        if (below := command.get_command(context, words[0])) is None:
            return f"no command {words[0]}"
        command, words = below, words[1:]
    try:
        parser = command.make_parser(click.Context(command, ignore_unknown_options=False))
        given, rest, _ = parser.parse_args(words)
    except click.NoSuchOption as error:
        return error.format_message()
    except click.UsageError as error:
        return error.format_message() if typed else ""
    if rest and typed:
        return f"{' '.join(rest)} is too much"
    for option in command.params:
        value = given.get(option.name or "")
        choices = option.type.choices if isinstance(option.type, click.Choice) else ()
        if choices and isinstance(value, str) and value not in choices and not value.isupper():
            return f"{option.opts[0]} {value} is none of {', '.join(choices)}"
    return ""


@pytest.mark.parametrize("at", PAGES, ids=lambda at: str(at.relative_to(ROOT)))
def test_every_link_leads_somewhere_and_every_command_parses(at):
    text = at.read_text()
    assert not list(broken_links(at, text))
    wrong = [f"parity {line}: {said}" for line, typed in commands(text) if (said := mistake(line, typed))]
    assert not wrong


def test_every_page_is_on_the_site_once():
    blocks = [token.content for token in tokens((DOCS / "index.md").read_text()) if token.info == "{toctree}"]
    listed = [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]
    pages = {str(at.relative_to(DOCS).with_suffix("")) for at in DOCS.rglob("*.md")} - {"index"}
    assert sorted(listed) == sorted(pages)


def test_the_page_of_commands_is_what_help_says():
    """In a process of its own: click keeps the help option of the first context that a command met."""
    made = subprocess.run([sys.executable, "-m", "tests.meta.commands"], cwd=ROOT, capture_output=True, text=True)
    assert (DOCS / "commands.md").read_text() == made.stdout, "python -m tests.meta.commands > docs/commands.md"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[there](glossary.md#no-such-word)", "no #no-such-word"),
        ("[there](nowhere.md)", "nowhere.md is not there"),
        ("    parity gaet", "no command gaet"),
        ("    parity gate --quik", "No such option"),
        ("`parity diff --modes`", "No such option"),
        ("    parity diff --mode sideways  # a remark", "--mode sideways is none of"),
        ("    parity taps 2 --from vllm && parity seal A B", "B is too much"),
        ("    parity gate --only", "requires an argument"),
    ],
)
def test_what_leads_nowhere_or_does_not_parse_is_named(text, said):
    found = [*broken_links(DOCS / "index.md", text), *(mistake(*line) for line in commands(text))]
    assert any(said in one for one in found), found
