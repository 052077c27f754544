"""Files made to be read badly: devices for files, links, bombs, depths, numbers, expressions, templates, code."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np

from tests.torture.attempts import NOT_ACCEPTED, SAME, SAME_OR_UNREADABLE, UNREADABLE, Attack, Attempt
from tests.torture.bases import TINY, Bases, lay_out, manifest, rewrite, sealed
from tests.torture.shards import rebuilt

DIFF = ("diff", "run", "--golden", "golden")
NASTY = (
    "[/x]",
    "run[red]1",
    "\x1b[2J\x1b]0;owned\x07",
    "a\u202eb",
    "%s{0}$HOME`id`",
    "-x",
    "ä\U0001f600",
    "a\nb",
    "x" * 200,
)
Case = tuple[str, frozenset[int], Callable[[Path, Random], Sequence[str]]]
CASES: list[Case] = []


def case(name: str, allowed: frozenset[int] = UNREADABLE):
    """Enter a case: prepares the attempt's folder, returns the arguments."""

    def enter(make):
        CASES.append((name, allowed, make))
        return make

    return enter


def attack(bases: Bases) -> Attack:
    """Every case, three times over."""
    from tests.torture import documents  # noqa: F401  (it enters its cases)

    def prepare(number: int, rng: Random, folder: Path) -> Attempt:
        name, allowed, make = CASES[number % len(CASES)]
        work = lay_out(bases.small, folder)
        (work / "home").mkdir()
        return Attempt(name, allowed, make(work, rng))

    return Attack("hostile", len(CASES) * 3, prepare, len(CASES))


def _file(work: Path, rng: Random) -> Path:
    """A manifest or shard of either side."""
    return work / rng.choice(
        (
            "golden/manifest.json",
            "run/manifest.json",
            "golden/p000.float32.safetensors",
            "run/p001.bfloat16.safetensors",
        )
    )


@case("a FIFO")
def _fifo(work, rng):
    path = _file(work, rng)
    path.unlink()
    os.mkfifo(path)
    return DIFF


@case("a link to /dev/zero")
def _zero(work, rng):
    path = _file(work, rng)
    path.unlink()
    path.symlink_to(rng.choice(("/dev/zero", "/dev/urandom", "/dev/tty", "/proc/self/mem")))
    return DIFF


@case("a folder in a file's place")
def _folder(work, rng):
    path = _file(work, rng)
    path.unlink()
    path.mkdir()
    return DIFF


@case("a link in a circle")
def _circle(work, rng):
    path = _file(work, rng)
    path.unlink()
    path.symlink_to(path.name)
    return DIFF


@case("a socket")
def _socket(work, rng):
    import socket

    path = _file(work, rng)
    path.unlink()
    here = os.getcwd()
    os.chdir(path.parent)
    socket.socket(socket.AF_UNIX).bind(path.name)
    os.chdir(here)
    return DIFF


@case("a shard behind a link")
def _linked(work, rng):
    path, outside = _copied_out(work)
    path.unlink()
    path.symlink_to(outside)
    return DIFF


@case("a shard outside the folder")
def _outside(work, rng):
    path, outside = _copied_out(work)
    text = (work / "run" / "manifest.json").read_text()
    named = rng.choice(
        (
            f"../../outside/{path.name}",
            str(outside),
            f"./../../outside/{path.name}",
            f"p000.bfloat16.safetensors/../../../outside/{path.name}",
        )
    )
    rewrite(work / "run" / "manifest.json", sealed(text.replace(path.name, named)))
    return DIFF


def _copied_out(work: Path) -> tuple[Path, Path]:
    """A shard, and its copy outside of the folder."""
    path = work / "run" / "p000.bfloat16.safetensors"
    return path, Path(shutil.copy(path, work.parent / "outside" / path.name))


@case("a sparse terabyte")
def _sparse(work, rng):
    path = _file(work, rng)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(2**40)
    return DIFF


@case("a header of a gigabyte")
def _header(work, rng):
    path = work / "run" / "p000.bfloat16.safetensors"
    path.unlink()
    with path.open("wb") as file:
        file.write((2**33).to_bytes(8, "little"))
        file.truncate(2**33 + 8)
    return DIFF


@case("a manifest of 300 MB")
def _large(work, rng):
    path = work / "run" / "manifest.json"
    text = path.read_text()
    filled = rng.choice((" " * 300_000_000, f', "x": "{"y" * 300_000_000}"'))
    rewrite(path, text[:-1] + filled + "}")
    return DIFF


@case("claimed sizes")
def _claimed(work, rng):
    """Numbers that ask for memory or time: layers, rounds, ranks, shapes."""
    path = work / rng.choice(("golden", "run")) / "manifest.json"
    data = json.loads(path.read_text())
    what = rng.randrange(6)
    if what == 0:
        data["model"][rng.choice(("num_layers", "num_drafter_layers"))] = rng.choice((10**6, 10**8, 2**62))
    elif what == 1:
        data["case"]["prompts"][0]["generation"]["acceptance_length"] = [1] * 200_000
        data["case"]["prompts"][0]["generation"]["accepted_drafts"] = [0] * 200_000
    elif what == 2:
        data["tensors"][0]["shape"] = [2**40, 2**20]
    elif what == 3:
        data["tensors"][0]["start"] = 2**40
    elif what == 4:
        data["case"]["prompts"] *= 100_000
    else:
        data["tensors"] += [data["tensors"][0] | {"rank": rank} for rank in range(1, 200_000)]
    rewrite(path, sealed(data))
    return DIFF


@case("a header of many dimensions")
def _dimensions(work, rng):
    data = (work / "run/p000.bfloat16.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + length])
    name = rng.choice(list(head))
    head[name]["shape"] += [1] * rng.choice((70, 10**6))
    rewrite(work / "run/p000.bfloat16.safetensors", rebuilt(head, data[8 + length :]))
    return DIFF


@case("a nasty folder", SAME)
def _named_nastily(work, rng):
    name = rng.choice([name for name in NASTY if name != "-x"])
    (work / name).parent.mkdir(parents=True, exist_ok=True)  # one of the names has a slash
    (work / "run").rename(work / name)
    return ("diff", name, "--golden", "golden")


@case("a nasty device", UNREADABLE)
def _device(work, rng):
    name = rng.choice(
        (
            *NASTY,
            "../x:y",
            ".x:y",
            "x:",
            ":y",
            "",
            "a.b",
            "os:_exit",
            "numpy,tp=",
            "numpy,,",
            "a:b:c",
            "x\0y:z",
            "numpy,tp=9" + "9" * 5000,
        )
    )
    return (
        ("diff", "--golden", "golden", "--device", name)
        if name != "-x"
        else ("diff", "--device=-x", "--golden", "golden")
    )


@case("nasty words in the manifest", SAME_OR_UNREADABLE)
def _words(work, rng):
    path = work / "run" / "manifest.json"
    data = json.loads(path.read_text())
    data["producer"]["name"] = rng.choice(NASTY[:5])
    data["producer"]["notes"] = {"note": rng.choice(NASTY[:5])}
    data["case"]["prompts"][0]["id"] = rng.choice(NASTY[:5])
    rewrite(path, sealed(data))
    return DIFF


@case("nasty stages", NOT_ACCEPTED)
def _stages(work, rng):
    path = work / "run" / "manifest.json"
    stage, nasty = rng.choice(manifest(work / "run")["stages"]), rng.choice(NASTY)
    text = path.read_text().replace(json.dumps(stage)[1:-1] + '"', json.dumps(nasty)[1:-1] + '"')
    rewrite(path, sealed(text))
    return DIFF


@case("nasty shapes of keys", NOT_ACCEPTED)
def _keys(work, rng):
    path = work / "run" / "manifest.json"
    data = json.loads(path.read_text())
    row = rng.choice(data["tensors"])
    stage = row["key"].split("/")[2]
    row["key"] = rng.choice(
        (
            "",
            "/",
            "p0/r0",
            f"p-1/r0000/{stage}",
            f"pq/rz/{stage}",
            f"p000/r{'9' * 5000}/{stage}",
            f"p٣/r0000/{stage}",
            f"p000/r0000/{stage}/x",
            f"p1_0/r0000/{stage}",
            "\x1b[31m",
        )
    )
    rewrite(path, sealed(data))
    return DIFF


class Opens:
    """Executed when it is unpickled: leaves the canary."""

    def __init__(self, canary: Path):
        self.canary = str(canary)

    def __reduce__(self):
        return open, (self.canary, "w")


def imported(*paths: str, source: str = "files", more: Sequence[str] = ()) -> Sequence[str]:
    """Import what was prepared."""
    return ("import", "--from", source, *paths, "--golden", "golden", "--out", "made", *more)


@case("an npz of code")
def _pickled(work, rng):
    canary = work.parent / "canary"
    kind = rng.choice(("npz", "npy", "pkl", "pt", "dict"))
    if kind == "npz":
        np.savez(work / "a.npz", **{"p000/r0000/target.embed": np.array([Opens(canary)], object)})
    elif kind == "npy":
        np.save(work / "a.npy", np.array([Opens(canary)], object))
    elif kind == "dict":
        (work / "a.npy").write_bytes(pickle.dumps(Opens(canary)))
    else:
        (work / f"a.{kind}").write_bytes(pickle.dumps({"target.embed": Opens(canary)}))
    return imported(
        next(path.name for path in work.glob("a.*")),
        source=rng.choice(("files", "files", "sglang", "polygraphy", "hf")),
    )


@case("a torch file of code")
def _torch(work, rng):
    """The zip that torch writes, with a pickle of its own."""
    with zipfile.ZipFile(work / "a.pt", "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps({"target.embed": Opens(work.parent / "canary")}))
        archive.writestr("a/version", "3\n")
    return imported("a.pt")


@case("an npz that unfolds")
def _bomb(work, rng):
    """3 MB that become 3 GB."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (3 * 2**28,)})
    with (
        zipfile.ZipFile(work / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("p000/r0000/target.embed.npy", "w", force_zip64=True) as member,
    ):
        member.write(head.getvalue())
        for _ in range(3 * 2**6):
            member.write(bytes(2**24))
    return imported("a.npz")


@case("an npz of nasty members")
def _members(work, rng):
    with zipfile.ZipFile(work / "a.npz", "w") as archive:
        for name in rng.sample(
            ("../../outside/x.npy", "/etc/x.npy", "a.npy", "", "x" * 60_000, "\x1b[31m.npy", "a.npy/"), 4
        ):
            buffer = io.BytesIO()
            np.save(buffer, np.zeros(3))
            archive.writestr(zipfile.ZipInfo(name), buffer.getvalue())
    return imported("a.npz")


@case("an npy of a nasty header")
def _npy(work, rng):
    text = rng.choice((
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "__import__('os').system('touch x')", "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "(" * 9000,
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '<M8[s]', 'fortran_order': False, 'shape': (2,), }",
    )).encode()  # fmt: skip
    (work / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64))
    return imported("a.npy")


@case("an import of a hostile folder")
def _tree(work, rng):
    folder = work / "tree"
    folder.mkdir()
    kind = rng.randrange(5)
    if kind == 0:
        os.mkfifo(folder / "target.embed.npy")
    elif kind == 1:
        (folder / "target.embed.npy").symlink_to(work.parent / "outside" / "secret")
    elif kind == 2:
        (folder / "circle").symlink_to(folder)
    elif kind == 3:
        (folder / "target.embed.npy").symlink_to("/dev/zero")
    else:
        deep = folder
        for _ in range(60):
            deep /= "d" * 60
        os.makedirs(deep)
        (folder / "x.json").write_text("[" * 100_000)
    return imported("tree", source=rng.choice(("files", "sglang", "polygraphy", "msprobe", "hf", "aws", "nxdi")))


def tiny_with(work: Path, **changes) -> Path:
    """The tiny target with fields of its config.json changed."""
    folder = work / "target"
    shutil.copytree(TINY / "target", folder, copy_function=os.link)
    config = json.loads((folder / "config.json").read_text())
    rewrite(folder / "config.json", json.dumps(config | changes))
    return folder
