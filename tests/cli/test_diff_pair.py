"""`parity diff A B`: files, folders and checkpoints compared without a golden, in one screen and one exit code."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from parity.imports.torch_file import torch_load


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    names = [f"layers.{layer}.{part}.weight" for layer in range(3) for part in ("q", "up")]
    return {name: rng.standard_normal((24, 40)).astype(np.float32) for name in names}


def save(path: Path, held: dict[str, np.ndarray]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, next(iter(held.values())))
    elif path.suffix == ".npz":
        np.savez(path, **held)
    elif path.suffix == ".safetensors":
        save_file(held, path)
    elif path.suffix == ".pt":
        import torch

        torch.save({name: torch.from_numpy(value) for name, value in held.items()}, path)
    else:
        path.mkdir()
        for name, value in held.items():
            np.save(path / f"{name}.npy", value)
    return path


def checkpoint(folder: Path, held: dict[str, np.ndarray], shards: int = 2) -> Path:
    names, placed = list(held), {}
    for number in range(shards):
        file = f"model-{number}.safetensors"
        save(folder / file, {name: held[name] for name in names[number::shards]})
        placed |= dict.fromkeys(names[number::shards], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    (folder / "config.json").write_text("{}")
    return folder


KINDS = (".npy", ".npz", ".safetensors", ".pt", "")


@pytest.mark.parametrize("kind", KINDS)
def test_two_of_a_kind_pass_within_rounding_and_fail_beyond_it(parity, tmp_path, kind):
    expected = tensors()
    good = {name: value * np.float32(1 + 2**-23) for name, value in expected.items()}
    bad = {name: value.copy() for name, value in expected.items()}
    first = next(iter(bad))
    bad[first][3, 5] += 2
    sides = [save(tmp_path / f"{name}{kind}", held) for name, held in (("b", expected), ("good", good), ("bad", bad))]
    assert parity("diff", sides[1], sides[0]).code == 0
    result = parity("diff", sides[2], sides[0], "--json", tmp_path / "result.json")
    assert result.code == 1 and "[3, 5]" in result.out and result.last.startswith("verdict: fail; ")
    data = json.loads((tmp_path / "result.json").read_text())
    wrong = [tensor for tensor in data["results"] if tensor["verdict"] == "fail"]
    assert len(wrong) == 1 and wrong[0]["first_bad"]["index"] == [3, 5] and data["exit_code"] == 1


def test_checkpoints_are_compared_by_the_names_of_their_state_dicts_however_they_are_sharded(parity, tmp_path):
    held = tensors()
    two = [checkpoint(tmp_path / name, held, shards) for name, shards in (("a", 2), ("b", 3))]
    assert parity("diff", *two).code == 0
    assert parity("diff", two[0], save(tmp_path / "c.safetensors", held)).code == 0
    held["layers.1.q.weight"] = held["layers.1.q.weight"] * np.float32(1.5)
    found = parity("diff", checkpoint(tmp_path / "d", held), two[1])
    assert found.code == 1 and "layers.1.q.weight" in found.out


def test_shards_of_a_hub_cache_are_links(parity, tmp_path):
    one = checkpoint(tmp_path / "blobs", tensors())
    (snapshot := tmp_path / "snapshot").mkdir()
    for path in one.iterdir():
        (snapshot / path.name).symlink_to(path)
    assert parity("diff", snapshot, checkpoint(tmp_path / "b", tensors(), 1)).code == 0


def test_a_map_renames_turns_and_leaves_out(parity, tmp_path):
    expected = {f"blk.{number}.{part}": value for number in range(2) for part, value in _parts(number)}
    heads = (3, 8)
    actual = {f"h_{n + 1:02}_q": expected[f"blk.{n}.q"].T.copy() for n in range(2)}
    actual |= {f"h_{n + 1:02}_up": expected[f"blk.{n}.up"].reshape(1, -1, *heads) for n in range(2)}
    actual["rope"] = np.ones(4, np.float32)
    sides = save(tmp_path / "a.npz", actual), save(tmp_path / "b.npz", expected | {"rope.cos": np.ones(4)})
    (tmp_path / "map.toml").write_text(
        """
        [[row]]
        name = 'h_(?P<l>\\d+)_q'
        to = "blk.{l-1}.q"
        axes = ["b", "a"]
        [[row]]
        name = 'h_(?P<l>\\d+)_up'
        to = "blk.{l-1}.up"
        axes = ["B", "a", "b", "c"]
        [[row]]
        name = "rope.*"
        ignore = "tables"
        """
    )
    sides = (
        sides[0],
        save(tmp_path / "c.npz", {n: v.reshape(-1, *heads) if "up" in n else v for n, v in expected.items()}),
    )
    found = parity("diff", *sides, "--map", tmp_path / "map.toml")
    assert found.code == 0 and "tensors: 4 compared" in found.last and "rope (tables)" in found.out
    found = parity("diff", *sides)
    assert found.code == 3 and "verdict: inconclusive" in found.last and "--suggest-map" in found.out


def _parts(number):
    rng = np.random.default_rng(number)
    return (
        ("q", rng.standard_normal((24, 40)).astype(np.float32)),
        ("up", rng.standard_normal((16, 24)).astype(np.float32)),
    )


def test_a_bare_array_is_compared_with_the_only_tensor_of_the_other_file(parity, tmp_path):
    one = {"hidden": tensors()["layers.0.q.weight"]}
    assert parity("diff", save(tmp_path / "a.npy", one), save(tmp_path / "b.safetensors", one)).code == 0
    other = save(tmp_path / "c.npz", {"x": one["hidden"]})
    assert parity("diff", other, tmp_path / "b.safetensors").code == 3


def test_a_tensor_on_one_side_only_fails_what_else_passes(parity, tmp_path):
    held = tensors()
    less = dict(list(held.items())[1:])
    sides = save(tmp_path / "a.npz", held), save(tmp_path / "b.npz", less)
    for pair, word in ((sides, "only in actual: 1"), (sides[::-1], "missing in actual: 1")):
        found = parity("diff", *pair)
        assert found.code == 1 and word in found.out and "5 compared, 1 on one side only" in found.last


def test_every_line_fits_eighty_columns_and_all_of_them_a_screen(parity, tmp_path):
    long = {
        f"model.decoder.layers.{n}.block_sparse_moe.experts.{n}.projection.weight": v
        for n, v in enumerate(tensors().values())
    }
    expected = {
        name: np.tile(value, (1, 1))
        for name, value in (long | {f"{n}{k}": v for k in "ab" for n, v in long.items()}).items()
    }
    actual = {name + "x" * (number % 3 == 0): value * 2 for number, (name, value) in enumerate(expected.items())}
    found = parity("diff", save(tmp_path / "a.npz", actual), save(tmp_path / "b.npz", expected))
    lines = found.out.splitlines()
    assert found.code == 1 and len(lines) <= 24 and max(map(len, lines)) < 80, found.out


def test_a_floor_sees_what_the_preset_of_bfloat16_does_not(parity, tmp_path):
    expected = tensors()
    narrow = {name: value.astype(ml_dtypes.bfloat16) for name, value in expected.items()}
    wrong = {name: (value * np.float32(1.01)).astype(ml_dtypes.bfloat16) for name, value in expected.items()}
    files = [save(tmp_path / f"{n}.safetensors", h) for n, h in (("a", wrong), ("b", expected), ("c", narrow))]
    assert parity("diff", *files[:2]).code == 1  # another dtype
    found = parity("diff", *files[:2], "--any-dtype")
    assert found.code == 0 and "not seen: bfloat16" in found.out
    assert parity("diff", *files[:2], "--any-dtype", "--floor", files[2]).code == 1


@pytest.fixture
def refused(parity):
    def check(*arguments, words):
        found = parity("diff", *arguments)
        assert found.code == 2 and found.err.count("\n") == 1 and "internal error" not in found.err, found
        assert not found.out and all(word in found.err for word in words), found.err

    return check


def test_dumps_are_compared_by_the_noise_they_know(refused, shallow_golden, tmp_path):
    golden, plain = shallow_golden.folder, save(tmp_path / "plain", tensors())
    refused(golden, plain, words=("is a golden and the other side none", "parity export", "parity import"))
    (run := tmp_path / "run").mkdir()
    (run / "manifest.json").write_text('{"schema_version": 1, "kind": "run"}')
    refused(run, golden, words=(f"parity diff {run} --golden {golden}",))
    refused(run, run, words=("--against",))
    refused(golden, golden, words=("parity corroborate",))
    refused(plain, tmp_path / "b", "--floor", golden, words=("is a golden",))


def test_wrong_mixes_are_one_sentence(refused, parity, tmp_path):
    a, b = save(tmp_path / "a.npz", tensors()), save(tmp_path / "b.npz", tensors())
    refused(a, b, "--golden", "g", words=("--golden is of RUN",))
    refused(a, b, "--stage", "logits", words=("--stage is of RUN",))
    refused("run", "--map", "m.toml", words=("--map is of two things",))
    refused(a, a, words=("one file",))
    refused("--partial", words=("--partial is of a dump",))
    refused(a, tmp_path / "none.npz", words=("none.npz",))
    (tmp_path / "x.json").write_text("{}")
    refused(a, tmp_path / "x.json", words=("none of .npy",))
    for text, word in (
        ("[[row]]\nname='zz'\nto='y'", "matches no name"),
        ("[[row]]\nname='.*'\nto='y'", "both become y"),
    ):
        (tmp_path / "m.toml").write_text(text)
        refused(a, b, "--map", tmp_path / "m.toml", words=(word,))


def test_a_checkpoint_that_contradicts_its_index_is_none(refused, tmp_path):
    whole = checkpoint(tmp_path / "whole", tensors())
    outside = dict.fromkeys(list(tensors())[::2], "../whole/model-0.safetensors")
    for name, weights in (("gone", {"x": "model-9.safetensors"}), ("out", outside)):
        shutil.copytree(whole, tmp_path / name)
        (tmp_path / name / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
        refused(tmp_path / name, whole, words=(name,))
    (lacking := tmp_path / "lacking").mkdir()
    shutil.copytree(whole, lacking, dirs_exist_ok=True)
    save(lacking / "model-0.safetensors", {"other": np.ones(3)})
    refused(lacking, whole, words=("no whole checkpoint",))
    save(lacking / "model-1.safetensors", {"other": np.ones(3)})
    (lacking / "model.safetensors.index.json").unlink()
    refused(lacking, whole, words=("holds other twice",))


def test_another_tools_manifest_makes_no_dump(parity, tmp_path):
    a, b = save(tmp_path / "a", tensors()), save(tmp_path / "b", tensors())
    (a / "manifest.json").write_text('{"files": []}')
    assert parity("diff", a, b).code == 0


def renamed(held: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As another library has them: other words, layers from 1 in two digits, one of the two parts turned."""
    words = {"q": "attention/query", "up": "mlp/expand"}
    made = {}
    for name, value in held.items():
        _, layer, part, _ = name.split(".")
        made[f"block_{int(layer) + 1:02}/{words[part]}"] = value.T.copy() if part == "up" else value
    return made


def test_two_folders_with_other_names_are_paired_by_content_then_compared(parity, tmp_path):
    expected = tensors()
    actual = renamed({name: value.astype(ml_dtypes.bfloat16).astype(np.float32) for name, value in expected.items()})
    actual = {name.replace("/", "."): value for name, value in actual.items()}
    wrong = {name: value + (1 if name == "block_02.mlp.expand" else 0) for name, value in actual.items()}
    sides = [save(tmp_path / name, held) for name, held in (("a", actual), ("wrong", wrong), ("b", expected))]
    assert parity("diff", sides[0], sides[2]).code == 3
    for side, code, row in ((sides[0], 0, ""), (sides[1], 1, "block_02.mlp.expand goes to layers.1.up.weight")):
        names = tmp_path / f"{side.name}.toml"
        found = parity("diff", side, sides[2], "--suggest-map", names)
        assert found.code == 0 and row in found.out, found.out + names.read_text()
        assert names.read_text().count("[[row]]") == 2 and 'axes = ["b", "a"]' in names.read_text()
        floor = save(
            tmp_path / f"floor-{side.name}",
            {n: v.astype(ml_dtypes.bfloat16).astype(np.float32) for n, v in expected.items()},
        )
        found = parity("diff", side, sides[2], "--map", names, "--floor", floor)
        assert found.code == code and "6 compared" in found.last, found.out
    assert "layers.1.up.weight" in found.out


def test_what_no_numbers_tell_apart_is_left_to_choose(parity, tmp_path):
    same = tensors()["layers.0.q.weight"]
    a = save(tmp_path / "a.npz", {"x": same, "norm": np.ones(40, np.float32), "odd": tensors(5)["layers.0.q.weight"]})
    b = save(tmp_path / "b.npz", {"one": same, "two": same, "scale": np.ones(40, np.float32)})
    found = parity("diff", a, b, "--suggest-map", tmp_path / "map.toml")
    text = (tmp_path / "map.toml").read_text()
    assert found.code == 3 and "\n[[row]]" not in text and "# [[row]]" in text, text
    assert "norm (constant 1) is not paired" in found.out and "odd (nothing is like it" in found.out


def test_a_torch_file_is_mapped_unless_its_archive_is_compressed(parity, tmp_path):
    a, b = save(tmp_path / "a.pt", tensors()), save(tmp_path / "b.pt", tensors())
    with zipfile.ZipFile(a) as whole, zipfile.ZipFile(tmp_path / "packed.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    held = {path: torch_load(path, str(path)) for path in (b, tmp_path / "packed.pt")}
    mapped = Path("/proc/self/maps").read_text()
    assert [str(path) in mapped for path in held] == [True, False]
    assert parity("diff", a, b).code == 0 and parity("diff", tmp_path / "packed.pt", b).code == 0


def test_weights_of_a_byte_are_compared_as_codes(parity, tmp_path):
    codes = np.arange(40, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    whole = np.arange(-20, 20, dtype=np.int16)
    sides = []
    for name, values in (("a", codes), ("b", codes), ("c", codes[::-1].copy())):
        held = {"w": values.view(np.uint8), "zero": whole}
        data = b"".join(value.tobytes() for value in held.values())
        kinds, ends = ("F8_E4M3", "I16"), (0, 40, 120)
        header = {
            key: {"dtype": kind, "shape": [40], "data_offsets": [first, end]}
            for key, kind, first, end in zip(held, kinds, ends, ends[1:], strict=False)
        }
        text = json.dumps(header).encode()
        sides.append(tmp_path / f"{name}.safetensors")
        sides[-1].write_bytes(len(text).to_bytes(8, "little") + text + data)
    assert parity("diff", sides[0], sides[1]).code == 0
    found = parity("diff", sides[2], sides[1])
    assert found.code == 1 and "2 compared, 1 out of bounds" in found.last


def test_a_pickle_in_a_torch_files_clothes_is_one_sentence(refused, tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Path("x")))
    refused(tmp_path / "pytorch_model.bin", save(tmp_path / "b.npz", tensors()), words=("more than tensors",))


def test_a_verdict_is_printed_whatever_becomes_of_its_json(parity, tmp_path):
    pair = [save(tmp_path / f"{name}.npy", tensors()) for name in "ab"]
    ended = parity("diff", *pair, "--json", "/dev/full")
    assert ended.code == 2 and "--json /dev/full cannot be written" in ended.err and "verdict" in ended.out


def test_a_folder_that_is_not_there_is_said_before_anything_is_done(parity, tmp_path):
    ended = parity("gate", "--device", "numpy", "--json", tmp_path / "none" / "a.json")
    assert ended.code == 2 and f"there is no folder {tmp_path / 'none'}" in " ".join(ended.err.split())
    assert not ended.out
