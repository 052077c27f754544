"""Files that were damaged, or made to mislead: each is one sentence and exit 2; nothing outside the dump is read."""

from __future__ import annotations

import json
import shutil
import struct
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch

from parity.errors import UsageError
from parity.imports.arrays import members
from tests.imports.conftest import RECORDED

EMBED = "p000/r0000/target.embed"
HIDDEN = np.zeros((5, 96), np.float32)
ROW = '[[row]]\nname = "%s"\nstage = "target.embed"\nround = "0"\n'


def npy(array: np.ndarray) -> bytes:
    held = BytesIO()
    np.save(held, array)
    return held.getvalue()


def safetensors(path: Path, header: str, body: bytes = b"\0" * 64) -> Path:
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + body)
    return path


def archive(path: Path, *members: tuple[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as held:
        for name, content in members:
            held.writestr(name, content)
    return path


def entry(**changes) -> str:
    return json.dumps({EMBED: {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8], **changes}})


@pytest.mark.parametrize(
    "header",
    [
        "[1, 2]",
        json.dumps({EMBED: 3}),
        json.dumps({EMBED: {"dtype": "F32"}}),
        entry(data_offsets=[-8, 0]),
        entry(data_offsets=["0", "8"]),
        entry(data_offsets=[0, 8, 8]),
        entry(dtype=["F32"]),
        entry(shape=[-1, -2]),
        entry(shape="12"),
        entry(shape=[1.0, 2]),
        entry(shape=[1, 2**40], data_offsets=[0, 2**42]),
        "[" * 100_000,
        '{"a": ' * 100_000,
        entry()[:-1] + ", " + entry()[1:],
    ],
)
def test_a_safetensors_header_that_lies(header, refused, tmp_path):
    refused("files", safetensors(tmp_path / "a.safetensors", header), words=("a.safetensors",))


def test_a_safetensors_file_whose_header_is_longer_than_it(refused, tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    refused("files", path, words=("a.safetensors", "truncated"))


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': (",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-5, 96)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (5, 2**70)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (5, 18446744073709551615)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (5, 1180591620717411303424)}",
        "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (5,)}",
        "{3: 1, 'descr': '<f4'}",
        "(" * 5_000,
        "'descr'",
    ],
)
def test_an_npy_header_that_lies(header, refused, tmp_path):
    text = header.encode() + b"\n"
    path = tmp_path / "target.embed.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + b"\0" * 64)
    refused("files", path, words=("target.embed.npy",), names=ROW % "target.embed")
    archive(tmp_path / "a.npz", (f"{EMBED}.npy", path.read_bytes()))
    refused("files", tmp_path / "a.npz", words=("a.npz",))


@pytest.mark.parametrize("kept", [0, 20, 200])
def test_a_truncated_npy_file(kept, refused, tmp_path):
    path = tmp_path / "target.embed.npy"
    path.write_bytes(npy(HIDDEN)[:kept])
    refused("files", path, words=("target.embed.npy",), names=ROW % "target.embed")


def test_an_archive_whose_member_is_no_array(refused, tmp_path):
    path = archive(tmp_path / "a.npz", (f"{EMBED}.npy", b"import os"))
    refused("files", path, words=("a.npz", EMBED))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_that_holds_a_name_twice(refused, tmp_path):
    path = archive(tmp_path / "a.npz", (f"{EMBED}.npy", npy(HIDDEN)), (f"{EMBED}.npy", npy(HIDDEN + 1)))
    refused("files", path, words=("a.npz", EMBED, "twice"))


def test_a_damaged_archive(refused, tmp_path):
    path = archive(tmp_path / "a.npz", (f"{EMBED}.npy", npy(np.random.default_rng(0).normal(size=(50, 96)))))
    held = bytearray(path.read_bytes())
    held[200:260] = b"\xff" * 60
    path.write_bytes(held)
    refused("files", path, words=("a.npz",))


def test_a_file_that_holds_no_tensor(refused, tmp_path):
    folder = tmp_path / "some"
    folder.mkdir()
    np.save(folder / "target.embed.npy", HIDDEN)
    torch.save({}, folder / "none.pt")
    refused("files", folder, words=("none.pt", "holds no tensor"), names=ROW % "target.embed")


def test_a_tensor_without_numbers(refused, tmp_path):
    torch.save(torch.zeros(5, 96, device="meta"), tmp_path / "target.embed.pt")
    refused("files", tmp_path / "target.embed.pt", words=("target.embed.pt",), names=ROW % "target.embed")


@pytest.mark.parametrize("tool", ["files", "sglang", "nxdi", "aws", "msprobe", "hf", "polygraphy"])
@pytest.mark.parametrize("what", ["file", "folder", "nothing"])
def test_a_link_in_a_dump(what, tool, dumped, refused, tmp_path):
    """Folders behind links would be left out without a word, and files behind them lie anywhere."""
    folder = tmp_path / tool if tool in ("files", "hf") else dumped(tool)
    folder.mkdir(exist_ok=True)
    if tool == "files":
        np.save(folder / "target.embed.npy", HIDDEN)
    if tool == "hf":
        (folder / "M_debug_tree_FULL_TENSORS.json").write_text("{}")
    outside = tmp_path / "outside"
    outside.mkdir()
    np.save(outside / "a.npy", HIDDEN)
    (folder / "link.npy").symlink_to({"file": outside / "a.npy", "folder": outside, "nothing": tmp_path / "none"}[what])
    refused(tool, folder, words=("link.npy", "link"))


@pytest.mark.parametrize("name", ["../../../../outside.pt", "{tmp}/outside.pt", "sub/../../../../../outside.pt"])
def test_an_index_that_points_out_of_its_dump(name, dumped, refused, tmp_path):
    torch.save(torch.zeros(5, 96), tmp_path / "outside.pt")
    folder = dumped("msprobe")
    index = next(folder.rglob("step0/*/dump.json"))
    first = next(index.parent.rglob("*.pt")).name
    index.write_text(index.read_text().replace(first, name.format(tmp=tmp_path)))
    refused("msprobe", folder, words=("outside.pt", "no file name"), names=RECORDED / "msprobe.toml")


def test_an_index_names_a_file_that_nobody_maps(dumped, refused):
    folder = dumped("msprobe")
    path = next(folder.rglob("*drafter.fc*.pt"))
    path.unlink()
    names = (RECORDED / "msprobe.toml").read_text().replace('stage = "drafter.fc_out"', 'ignore = "not now"')
    refused("msprobe", folder, words=(path.name, "missing"), names=names)


@pytest.mark.parametrize("tool", ["msprobe", "nxdi", "polygraphy"])
@pytest.mark.parametrize(
    "text", ["{" * 5, '{"a": ' * 100_000, "[]", "", '{"lst": {}, "lst": {}, "data": {}, "data": {}}']
)
def test_an_index_that_is_damaged(text, tool, dumped, refused):
    folder = dumped(tool)
    names = {"msprobe": "dump.json", "nxdi": "capture_metadata.json", "polygraphy": "results.json"}
    path = next(folder.rglob(names[tool]))
    path.write_text(text)
    refused(tool, folder, words=(path.name,))


@pytest.mark.parametrize("value", [3, None, "text", [1]])
def test_metadata_of_another_form(value, dumped, refused):
    folder = dumped("nxdi")
    path = folder / "capture_metadata.json"
    found = json.loads(path.read_text())
    found["tensors"] = dict.fromkeys(found["tensors"], value)
    path.write_text(json.dumps(found))
    refused("nxdi", folder, words=("capture_metadata.json",), names=RECORDED / "nxdi.toml")
    path.write_text(json.dumps(found | {"tensors": value}))
    refused("nxdi", folder, words=("capture_metadata.json",), names=RECORDED / "nxdi.toml")


@pytest.mark.parametrize("results", [3, [3], [["a", 3]], [["a", [3]]], [["a", [{"outputs": 3}]]], [["a", [{}]]]])
def test_run_results_of_another_form(results, refused, tmp_path):
    (tmp_path / "results.json").write_text(json.dumps({"lst": results}))
    refused("polygraphy", tmp_path / "results.json", words=("results.json", "RunResults"))


def test_run_results_with_several_arrays_in_one(refused, tmp_path):
    import base64

    held = BytesIO()
    np.savez(held, a=HIDDEN, b=HIDDEN)
    outputs = {"target.embed": {"values": {"array": base64.b64encode(held.getvalue()).decode()}}}
    (tmp_path / "results.json").write_text(json.dumps({"lst": [["a", [{"outputs": outputs}]]]}))
    refused("polygraphy", tmp_path / "results.json", words=("target.embed", "2 arrays"))


def test_the_meta_of_sglang_s_file_is_of_another_form(dumped, refused):
    folder = dumped("sglang")
    for path in folder.glob("*.pt"):
        torch.save({"value": torch.zeros(5, 96), "meta": [1]}, path)
    refused("sglang", folder, words=("no file of SGLang's dumper",), names=RECORDED / "sglang.toml")


def test_a_tag_that_comes_twice(dumped, refused):
    folder = dumped("sglang")
    path = sorted(folder.glob("*.pt"))[0]
    path.rename(path.with_name(path.name.replace("___dump", "___name=other___dump")))
    refused("sglang", folder, words=("name=other", "twice"), names=RECORDED / "sglang.toml")


@pytest.mark.parametrize(
    ("tool", "name"), [("sglang", "extra.npy"), ("aws", "draft/extra/rank0.pt"), ("aws", "decode/rank0.pt")]
)
def test_a_file_that_the_tool_did_not_write(tool, name, dumped, refused):
    folder = dumped(tool)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, HIDDEN) if path.suffix == ".npy" else torch.save(torch.zeros(1), path)
    refused(tool, folder, words=(Path(name).name,), names=RECORDED / f"{tool}.toml")


def test_the_capture_of_a_later_rank_alone(dumped, refused, tmp_path):
    folder = Path(shutil.move(dumped("nxdi"), tmp_path / "rank3"))
    refused("nxdi", folder, words=("ranks [3]", "0 … 3"), names=RECORDED / "nxdi.toml")


def test_a_rank_beyond_all_measure(dumped, refused):
    folder = dumped("aws")
    path = next(folder.rglob("layers.0.self_attn.q/rank1.pt"))
    path.rename(path.with_name("rank999999999999.pt"))
    refused("aws", folder, words=("999999999999",), names=RECORDED / "aws.toml")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('name = "(?P<rank>.)"\nstage = "target.embed"\nround = "0"', ("rank",)),
        ('name = "(?P<rank>b)?a"\nstage = "target.embed"\nround = "0"', ("rank",)),
        ('name = "(?P<l>.)"\nstage = "target.layers.{l+1}.out"\nround = "0"', ("{l+1}", "no value")),
        ('name = "a"\nstage = "target.embed"\nround = "0"\naxes = ["B", "S", "H"]\nprompts = [-1]', ("prompts",)),
        ('name = "a"\nstage = "kv.target.0.k"\nround = "0"\nsharding = "S"', ("sharding", "cache")),
    ],
)
def test_rows_that_lead_nowhere(row, words, refused, tmp_path):
    np.savez(tmp_path / "a.npz", a=HIDDEN[None])
    refused("files", tmp_path / "a.npz", words=words, names=f"[[row]]\n{row}\n")


@pytest.mark.parametrize(("held", "said"), [(b"", "is empty"), (b"1 2 3\n", "is no .npy file")])
def test_an_npy_file_that_is_empty_or_text_is_said_to_be(held, said, tmp_path):
    path = tmp_path / "a.npy"
    path.write_bytes(held)
    with pytest.raises(UsageError, match=said):
        members(path, str(path))
