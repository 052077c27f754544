"""Every class of bytes of a safetensors shard: length, header, offsets, data of each dtype, end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.torture.attempts import SAME_OR_UNREADABLE, UNREADABLE, Attack, Attempt
from tests.torture.bases import Bases, lay_out, manifest, rewrite
from tests.torture.fields import LESS

ITEM = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}
Spoil = Callable[[bytearray, Random], bytes]


def header(data: bytes) -> tuple[int, dict]:
    """Where the data begin, and the header."""
    length = int.from_bytes(data[:8], "little")
    return 8 + length, json.loads(data[8 : 8 + length])


def rebuilt(head: object, body: bytes) -> bytes:
    """A shard of this header."""
    text = head if isinstance(head, bytes) else json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def _flip(begin: Callable[[bytearray], tuple[int, int]]) -> Spoil:
    """One bit, or a few bytes, between two places."""

    def spoil(data: bytearray, rng: Random) -> bytes:
        first, end = begin(data)
        for _ in range(rng.choice((1, 1, 1, 4))):
            place = rng.randrange(first, end)
            data[place] = rng.choice((data[place] ^ 1 << rng.randrange(8), rng.randrange(256), 0, 255))
        return bytes(data)

    return spoil


def _data(dtype: str) -> Spoil:
    """One bit inside a tensor of this dtype; of any where the shard has none."""

    def spoil(data: bytearray, rng: Random) -> bytes:
        body, head = header(data)
        entries = [one for name, one in head.items() if name != "__metadata__"]
        fit = [one for one in entries if one["dtype"] == dtype] or entries
        first, end = rng.choice([one for one in fit if one["data_offsets"][0] < one["data_offsets"][1]])["data_offsets"]
        place = body + rng.randrange(first, end)
        data[place] ^= 1 << rng.randrange(8)
        return bytes(data)

    return spoil


def _entry(change: Callable[[dict, Random], None]) -> Spoil:
    """The header's entry of one tensor, the header whole again behind it."""

    def spoil(data: bytearray, rng: Random) -> bytes:
        body, head = header(data)
        change(head[rng.choice([name for name in head if name != "__metadata__"])], rng)
        return rebuilt(head, bytes(data[body:]))

    return spoil


def _offsets(entry: dict, rng: Random) -> None:
    place = rng.randrange(2)
    entry["data_offsets"][place] = rng.choice(
        (-1, 0, entry["data_offsets"][place] + rng.choice((-8, 4, 8)), 2**40, 2**63, 1.5, "0", None)
    )


def _dtype(entry: dict, rng: Random) -> None:
    entry["dtype"] = rng.choice(
        [name for name in (*ITEM, "C64", "F8_E4M3", "", "\x1b[31m", None, 5, ["F32"]) if name != entry["dtype"]]
    )


def _shape(entry: dict, rng: Random) -> None:
    shape = entry["shape"]
    entry["shape"] = rng.choice((
        [], [0], [-1, *shape[1:]], [*shape, 1], shape[::-1] if len(set(shape)) > 1 else [*shape, 2], [2**32, 2**32],
        [2**63],
        [*shape, *[1] * 70], shape[:-1], [float("nan")], "4", None, [[4]], [True, *shape], {},
    ))  # fmt: skip


def _swapped(data: bytearray, rng: Random) -> bytes:
    """Two tensors' entries exchanged."""
    body, head = header(data)
    one, other = rng.sample([name for name in head if name != "__metadata__"], 2)
    head[one], head[other] = head[other], head[one]
    return rebuilt(head, bytes(data[body:]))


def _twice(data: bytearray, rng: Random) -> bytes:
    """A tensor's name a second time, with another one's entry."""
    body, head = header(data)
    one, other = rng.sample([name for name in head if name != "__metadata__"], 2)
    text = json.dumps(head)[:-1] + f", {json.dumps(one)}: {json.dumps(head[other])}}}"
    return rebuilt(text.encode(), bytes(data[body:]))


def _head(text: bytes) -> Spoil:
    return lambda data, rng: rebuilt(text, bytes(data[header(data)[0] :]))


SPOILS: dict[str, Spoil] = {
    "a byte of the length": _flip(lambda data: (0, 8)),
    "a byte of the header": _flip(lambda data: (8, header(data)[0])),
    "a byte anywhere": _flip(lambda data: (0, len(data))),
    "a byte of F32 data": _data("F32"),
    "a byte of BF16 data": _data("BF16"),
    "a byte of I64 data": _data("I64"),
    "offsets": _entry(_offsets),
    "dtype": _entry(_dtype),
    "shape": _entry(_shape),
    "an entry lost": _entry(lambda entry, rng: entry.pop(rng.choice(list(entry)))),
    "an entry more": _entry(lambda entry, rng: entry.update({rng.choice(("x", "", "__proto__")): 1})),
    "two tensors exchanged": _swapped,
    "a tensor twice": _twice,
    "cut off": lambda data, rng: bytes(data[: rng.randrange(len(data))]),
    "cut off in the header": lambda data, rng: bytes(data[: rng.randrange(header(data)[0])]),
    "the last byte lost": lambda data, rng: bytes(data[:-1]),
    "bytes appended": lambda data, rng: bytes(data) + rng.randbytes(rng.choice((1, 8, 4096))),
    "a byte inserted": lambda data, rng: (
        bytes(data[: (place := rng.randrange(len(data)))]) + b"\0" + bytes(data[place:])
    ),
    "a page of zeros": lambda data, rng: (
        bytes(data[: (place := rng.randrange(len(data)))]) + b"\0" * 512 + bytes(data[place + 512 :])
    ),
    "length 2^63": lambda data, rng: (2**63).to_bytes(8, "little") + bytes(data[8:]),
    "length of the file": lambda data, rng: (len(data) - 8).to_bytes(8, "little") + bytes(data[8:]),
    "empty": lambda data, rng: b"",
    "another file's kind": lambda data, rng: (
        rng.choice((b"PK\3\4", b"\x93NUMPY", b"\x80\2c", b"{}", b"\x1f\x8b")) + bytes(data)
    ),
    "header null": _head(b"null"),
    "header a list": _head(b"[]"),
    "header empty": _head(b"{}"),
    "header nested": _head(b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    "header no UTF-8": _head(b'{"\xff":1}'),
    "entry null": lambda data, rng: rebuilt(dict.fromkeys(header(data)[1]), bytes(data[header(data)[0] :])),
    "metadata": lambda data, rng: rebuilt(
        {"__metadata__": {"a": "b"}, **header(data)[1]}, bytes(data[header(data)[0] :])
    ),
}


def attack(bases: Bases) -> Attack:
    """Every spoil on every shard of both sides, 20 times over; then at random."""
    sides = (bases.small, ()), (bases.less, LESS)
    shards = [
        (base, left_out, path.relative_to(base))
        for base, left_out in sides
        for path in sorted(base.rglob("*.safetensors"))
    ]

    def prepare(number: int, rng: Random, folder: Path) -> Attempt:
        how = list(SPOILS)[number % len(SPOILS)]
        base, left_out, shard = shards[number // len(SPOILS) % len(shards)]
        work = lay_out(base, folder)
        before = (work / shard).read_bytes()
        after = SPOILS[how](bytearray(before), rng)
        rewrite(work / shard, after)
        listed = {row["key"] for row in manifest(work / shard.parts[0])["tensors"] if row["shard"] == shard.name}
        same = _contents(before, listed) == _contents(after, listed)
        allowed = SAME_OR_UNREADABLE if same else UNREADABLE
        said = f"{shard}: {how}" + (" (sketches)" if left_out else "")
        return Attempt(said, allowed, ("diff", "run", "--golden", "golden", *left_out))

    return Attack("shards", len(SPOILS) * len(shards) * 20, prepare, 240)


def _contents(data: bytes, listed: set[str]) -> dict | None:
    """dtype, shape and bytes of each tensor the manifest lists, to a strict reader; None where it is no such file."""
    try:
        body, head = header(data)
        found = {}
        for name in listed:
            entry = head[name]
            first, end = entry["data_offsets"]
            found[name] = entry["dtype"], tuple(entry["shape"]), bytes(data[body + first : body + end])
    except (ValueError, KeyError, TypeError, RecursionError, IndexError):
        return None
    return found
