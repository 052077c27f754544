"""A file of prompts: what a line may hold, and where the mistake is that a sentence tells."""

from __future__ import annotations

import pytest

from parity.errors import UsageError
from parity.references.prompts import read_prompts

GOOD = '{"id": "first", "ids": [1, 2, 3]}'


@pytest.fixture
def read(tmp_path, tiny):
    """Read a file of these bytes: its prompts, for the tiny vocabulary."""

    def made(content: str | bytes) -> list[tuple[str, list[int]]]:
        path = tmp_path / "p.jsonl"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_prompts(path, tiny / "target", 1280)

    return made


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            '{"id": "a", "text": "x", "ids": [1, 2]}',
            "a prompt has one of messages, text and ids; this one has text",
        ),
        ('{"id": "a", "text": "x", "txt": 1}', "a prompt has no txt: its keys are id, and messages, text or ids"),
        ('{"id": "a"}', "a prompt has one of messages, text and ids; this one has none"),
        ("[1, 2]", "a prompt is a JSON object"),
        ('{"id": "a", "ids": [true, 2]}', "prompt a: true is no token id: they are whole numbers of 0 to 1279"),
        ('{"id": "a", "ids": [2, 1.5]}', "prompt a: 1.5 is no token id"),
        ('{"id": "a", "ids": [2, 1280]}', "prompt a: 1280 is no token id"),
        ('{"id": "a", "ids": [5]}', "prompt a has 1 token, at least 2 are needed: a drafter pairs each with the one"),
        ('{"id": "a", "ids": []}', "prompt a has no token, at least 2 are needed"),
        ('{"ids": [5]}', "prompt 2 has 1 token"),
        (r'{"text": "\ud800"}', "text of a prompt holds half of a surrogate pair"),
    ],
)
def test_a_line_that_is_no_prompt_is_told_with_its_place(line, words, read):
    with pytest.raises(UsageError) as raised:
        read(f"{GOOD}\n\n{line}\n")
    assert f"p.jsonl:3: {words}" in str(raised.value)


def test_a_byte_order_mark_is_no_part_of_the_first_prompt(read):
    assert read(b"\xef\xbb\xbf" + GOOD.encode() + b"\r\n") == [("first", [1, 2, 3])]


def test_prompts_without_an_id_are_counted_and_not_their_lines(read):
    assert [name for name, _ in read('\n{"ids": [1, 2]}\n\n{"ids": [3, 4]}\n')] == ["1", "2"]
