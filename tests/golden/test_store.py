"""The golden store: whole or not at all, lossless, and refused when its bytes changed."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from parity.errors import UsageError
from parity.golden import shards
from parity.golden.manifest import FILE, Manifest
from parity.golden.reading import read_manifest
from parity.golden.store import Dump
from parity.golden.writer import DumpWriter, unchanged_rows
from parity.stages import declared
from tests.sample import by_night

NAMES = declared(1, 1)
SCHEMA = Path(__file__).parents[2] / "docs" / "golden.schema.json"


def copy(golden: Dump, to: Path) -> Path:
    shutil.copytree(golden.folder, to)
    return to


def test_a_killed_dump_leaves_nothing_behind(tmp_path):
    with pytest.raises(KeyboardInterrupt), DumpWriter(tmp_path / "out") as writer:
        writer.add(0, "float32", NAMES.values(), {(0, "target.embed"): np.ones((2, 3), np.float32)})
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o027])
def test_shards_are_as_readable_as_any_file_of_this_user(umask, tmp_path):
    before = os.umask(umask)
    try:
        shards.write(tmp_path / "shard.safetensors", {"x": np.ones(3, np.float32)})
    finally:
        os.umask(before)
    assert (tmp_path / "shard.safetensors").stat().st_mode & 0o777 == 0o666 & ~umask


def test_an_existing_folder_is_never_overwritten(tmp_path):
    with pytest.raises(UsageError, match="exists already"):
        DumpWriter(tmp_path)
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(UsageError, match="link exists already"):  # it was met when everything had been computed
        DumpWriter(tmp_path / "link")


def test_a_folder_that_another_command_wrote_meanwhile_is_not_overwritten(small_golden, tmp_path):
    made, out = small_golden.manifest, tmp_path / "out"
    given = {name: getattr(made, name) for name in ("kind", "stages", "created", "producer", "model", "case")}
    with pytest.raises(UsageError, match="out was written meanwhile by another command"), DumpWriter(out) as writer:
        out.mkdir()
        (out / "manifest.json").write_text("theirs")
        writer.finish(**given)
    assert (out / "manifest.json").read_text() == "theirs" and list(tmp_path.iterdir()) == [out]


def test_cache_contents_come_back_bit_for_bit_from_what_changed(small_golden):
    folder = small_golden.folder
    rows = [small_golden.contents("float32", 0, r, "kv.drafter.1.k") for r in range(3)]
    stored = [small_golden.stored("float32", 0, r, "kv.drafter.1.k") for r in range(3)]
    assert len(stored[1]) < len(rows[1]), f"{folder} stores whole caches every round"
    assert np.array_equal(rows[2][: len(rows[1])], rows[1])


def test_a_variant_of_several_shards_is_the_same_golden(small_golden, tmp_path, monkeypatch):
    """At real width a prompt's stages are gigabytes: a shard of them is in memory at a time."""
    monkeypatch.setattr("parity.golden.writer.SHARD", 2**16)
    made, out = small_golden.manifest, tmp_path / "out"
    given = {name: getattr(made, name) for name in ("kind", "stages", "created", "producer", "model", "case")}
    with DumpWriter(out) as writer:
        for prompt, variant in sorted({(place[1], place[0]) for place in small_golden.rows}):
            here = [place for place in small_golden.rows if place[:2] == (variant, prompt)]
            tensors = {place[2:]: small_golden.contents(*place) for place in here}
            writer.add(prompt, variant, small_golden.declared.values(), tensors)
        writer.finish(**given)
    again = Dump(out)
    assert len(list(out.glob("p000.float32*.safetensors"))) > 3 and again.rows.keys() == small_golden.rows.keys()
    assert all(np.array_equal(again.stored(*place), small_golden.stored(*place)) for place in again.rows)


@pytest.mark.parametrize("changed", [0, 3, 6])
def test_unchanged_rows_end_at_the_first_changed_one(changed):
    before = np.arange(24, dtype=np.float32).reshape(6, 2, 2)
    now = np.concatenate([before, before])
    if changed < 6:
        now[changed, 1, 1] = -1
    assert unchanged_rows(before, now) == changed


def test_negative_zero_is_a_change():
    before = np.zeros((2, 1), ml_dtypes.bfloat16)
    assert unchanged_rows(before, -before) == 0


def test_a_changed_byte_is_refused(small_golden, tmp_path):
    folder = copy(small_golden, tmp_path / "g")
    shard = folder / "p000.float32.safetensors"
    with shard.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    dump = Dump(folder)
    with pytest.raises(UsageError, match="does not match the manifest's digest"):
        for place in dump.rows:
            dump.stored(*place)


def test_a_truncated_shard_is_refused(small_golden, tmp_path):
    folder = copy(small_golden, tmp_path / "g")
    shard = folder / "p000.float32.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(UsageError, match="truncated"):
        dump = Dump(folder)
        for place in dump.rows:
            dump.stored(*place)


def test_a_shard_without_a_tensor_that_the_manifest_lists_is_refused_by_both_names(small_golden, tmp_path):
    folder = copy(small_golden, tmp_path / "g")
    shard = folder / "p000.float32.safetensors"
    tensors = load_file(shard)
    key, _ = tensors.popitem()
    save_file(tensors, shard)
    dump = Dump(folder)
    with pytest.raises(UsageError, match=re.escape(f"{shard} lacks tensor {key}, which the manifest lists")):
        for place in dump.rows:
            dump.stored(*place)


@pytest.mark.parametrize(
    ("field", "value", "names"),
    [("kind", "truth", "kind"), ("surprise", 1, "surprise"), ("schema_version", 1, "schema_version.*parity seal")],
)
def test_a_wrong_manifest_is_refused_by_field(field, value, names, small_golden, tmp_path):
    raw = json.loads((small_golden.folder / FILE).read_text())
    raw[field] = value
    (tmp_path / FILE).write_text(json.dumps(raw))
    with pytest.raises(UsageError, match=names):
        read_manifest(tmp_path)


def test_the_published_schema_is_current():
    assert json.loads(SCHEMA.read_text()) == Manifest.model_json_schema()


@by_night
def test_dumping_again_gives_the_same_tensors_bit_for_bit(shallow_golden, tmp_path, remake_small_golden):
    model, tokens = shallow_golden.manifest.model, shallow_golden.manifest.case.max_new_tokens
    pair = {side: Path(getattr(model, side).path) for side in ("target", "drafter")}
    again = remake_small_golden(tmp_path / "again", max_new_tokens=tokens, **pair)
    first = {(row.variant, row.key): row.sha256 for row in shallow_golden.manifest.tensors}
    assert first == {(row.variant, row.key): row.sha256 for row in again.manifest.tensors}
