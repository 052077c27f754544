"""A tensor with a batch axis, padding, joined or swapped axes, or the next round's rows finds its stage's form."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from parity.errors import UsageError
from parity.imports.names import fill

QUERY = "target.layers.3.q"
LONG = np.full((1, 3), 7.0, np.float32)


@pytest.fixture
def brought(short_golden, imported, tmp_path):
    """Import arrays by the rows given; the run."""

    def make(rows: str, **arrays):
        np.savez(tmp_path / "arrays.npz", **arrays)
        (tmp_path / "map.toml").write_text(rows)
        return imported("files", tmp_path / "arrays.npz", names=tmp_path / "map.toml")

    return make


@pytest.fixture
def true(short_golden):
    return lambda stage, round_=0: np.array(short_golden.contents("float32", 0, round_, stage))


def row(name: str, stage: str, more: str = "") -> str:
    return f'[[row]]\nname = "{name}"\nstage = "{stage}"\nround = "0"\n{more}\n'


@pytest.mark.parametrize(
    ("axes", "change"),
    [
        ('["B", "S", "N*D"]', lambda q: q.reshape(1, len(q), -1)),
        ('["N", "S", "D"]', lambda q: q.transpose(1, 0, 2)),
        ('["B", "N", "S", "D"]', lambda q: q.transpose(1, 0, 2)[None]),
        ('["S", "B", "N", "D"]', lambda q: q[:, None]),
    ],
)
def test_axes(axes, change, brought, true):
    run = brought(row("a", QUERY, f"axes = {axes}"), a=change(true(QUERY)))
    assert np.array_equal(run.contents("float32", 0, 0, QUERY), true(QUERY))


def test_padding_is_cut_off(brought, true):
    padded = np.concatenate([true(QUERY), np.full((11, 8, 32), 9, np.float32)])
    run = brought(row("a", QUERY, "padded = true"), a=padded)
    assert np.array_equal(run.contents("float32", 0, 0, QUERY), true(QUERY))


def test_padding_nobody_spoke_of_is_a_failure(brought, true, short_golden, parity):
    run = brought(row("a", QUERY), a=np.concatenate([true(QUERY)] * 2))
    found = parity("diff", run.folder, "--golden", short_golden.folder, "--stage", QUERY)
    assert found.code == 1 and QUERY in found.last


def test_one_pass_of_the_tool_may_be_two_rounds_of_ours(brought, true):
    """Engines draft in the pass that prefills: its last rows are those of round 1."""
    first, second = true("drafter.fc_out"), true("drafter.fc_out", 1)
    rows = row("a", "drafter.fc_out", f'rows = ":{len(first)}"\nalso = true')
    rows += row("a", "drafter.fc_out", f'rows = "{len(first)}:"').replace('round = "0"', 'round = "1"')
    run = brought(rows, a=np.concatenate([first, second]))
    for round_, rows in enumerate((first, second)):
        assert np.array_equal(run.contents("float32", 0, round_, "drafter.fc_out"), rows)


def test_layers_counted_by_what_enters_them(brought, true):
    rows = (
        "".join(row(f"h{layer}", f"in_of[{layer}]") for layer in range(3))
        + row("last", "in_of[{L}]")
        + row("o", "out_of[5]")
    )
    stream = {f"h{layer}": true(f"target.layers.{layer - 1}.out") for layer in (1, 2)}
    run = brought(
        rows, h0=true("target.embed"), **stream, last=true("target.layers.7.out"), o=true("target.layers.5.out")
    )
    assert run.manifest.stages == ("target.embed", *(f"target.layers.{layer}.out" for layer in (0, 1, 5, 7)))
    assert np.array_equal(run.contents("float32", 0, 0, "target.layers.1.out"), true("target.layers.1.out"))


def test_half_precision_widens_and_bfloat16_makes_a_bfloat16_run(brought, true, imported, tmp_path):
    run = brought(row("a", QUERY), a=true(QUERY).astype(np.float16))
    assert run.manifest.case.precision == "float32"
    assert np.array_equal(run.contents("float32", 0, 0, QUERY), true(QUERY).astype(np.float16).astype(np.float32))


def test_bits_of_bfloat16_are_declared_by_the_map(brought, true, imported, tmp_path):
    narrow = true(QUERY).astype(ml_dtypes.bfloat16)
    run = brought(row("a", QUERY, 'bits = "bfloat16"'), a=narrow.view(np.uint16))
    assert run.manifest.case.precision == "bfloat16"
    assert np.array_equal(run.contents("bfloat16", 0, 0, QUERY), narrow)


def test_bits_that_nobody_declares_or_that_are_none_are_refused(brought, true):
    bits = true(QUERY).astype(ml_dtypes.bfloat16).view(np.uint16)
    with pytest.raises(UsageError, match=r'uint16, which the format does not know: .* bits = "bfloat16"'):
        brought(row("a", QUERY), a=bits)
    with pytest.raises(UsageError, match="which is of uint16; it has dtype float32"):
        brought(row("a", QUERY, 'bits = "bfloat16"'), a=true(QUERY))


def test_numpy_files_lose_bfloat16(brought, true):
    with pytest.raises(UsageError, match="dtype"):
        brought(row("a", QUERY), a=true(QUERY).astype(ml_dtypes.bfloat16))


def test_the_entries_of_a_batch_are_prompts(shallow_golden, tmp_path):
    from parity.golden.store import Dump
    from parity.imports.names import read_map
    from parity.imports.run import ImportRequest, import_run
    from parity.imports.torch_file import torch_load

    both = [np.array(shallow_golden.contents("float32", prompt, 0, "target.embed")) for prompt in (0, 1)]
    batch = np.zeros((2, max(map(len, both)), 96), np.float32)
    for entry, rows in zip(batch, both, strict=True):
        entry[: len(rows)] = rows
    np.savez(tmp_path / "a.npz", a=batch)
    (tmp_path / "m.toml").write_text(
        row("a", "target.embed", 'axes = ["B", "S", "H"]\nprompts = [0, 1]\npadded = true')
    )
    names = read_map(str(tmp_path / "m.toml"))
    import_run(ImportRequest("files", [tmp_path / "a.npz"], names, shallow_golden, tmp_path / "run", torch_load))
    for prompt, rows in enumerate(both):
        assert np.array_equal(Dump(tmp_path / "run").contents("float32", prompt, 0, "target.embed"), rows)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{step-1}", "4"),
        ("{l}", "7"),
        ("{l+2}", "9"),
        ("{word}.k", "kv.k"),
        ("in_of[{l}]", "target.layers.6.out"),
        ("out_of[{l}]", "target.layers.7.out"),
        ("hf[{step}]", "target.layers.4.out"),
        ("nxdi[{step}]", "target.layers.5.out"),
        ("vllm[0]", "target.embed"),
    ],
)
def test_fields_of_a_row(text, filled):
    assert fill(text, {"step": 5, "L": 8, "l": "07", "word": "kv"}, "a") == filled


@pytest.mark.parametrize("text", ["hf[{L}]", "tpu[3]", "out_of[8]"])
def test_a_stream_that_no_numbering_has(text):
    with pytest.raises(UsageError, match=r"final norm|numbering"):
        fill(text, {"L": 8}, "a")


def test_the_rows_of_a_cache_that_only_one_rank_changed(short_golden, imported, tmp_path, true):
    """What a round changed is said of the whole cache, not of each rank's share of it."""
    stage = "kv.target.0.k"
    caches = [true(stage, round_) for round_ in (0, 1)]
    caches[1][0, 0] += 1  # of the first rank's heads alone
    heads = caches[0].shape[1] // 2
    for round_, cache in enumerate(caches):
        for rank in (0, 1):
            folder = tmp_path / "kv" / f"r{round_}"
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / f"rank{rank}.npy", cache[:, rank * heads : (rank + 1) * heads])
    (tmp_path / "kv.toml").write_text(
        f'[[row]]\nname = \'r(?P<round>.)/rank(?P<rank>.)\'\nstage = "{stage}"\nsharding = "G"\n'
    )
    run = imported("files", tmp_path / "kv", names=tmp_path / "kv.toml")
    for round_, cache in enumerate(caches):
        assert np.array_equal(run.contents("float32", 0, round_, stage), cache)


def test_results_in_several_files_come_in_the_order_of_their_numbers(short_golden, imported, true, tmp_path):
    import base64
    import json
    from io import BytesIO

    folder = tmp_path / "results"
    folder.mkdir()
    for number in (2, 10):
        held = BytesIO()
        np.save(held, np.full((1, 1), number, np.int64))
        outputs = {"target.embed": {"values": {"array": base64.b64encode(held.getvalue()).decode()}}}
        (folder / f"run{number}.json").write_text(json.dumps({"lst": [["a", [{"outputs": outputs}]]]}))
    run = imported("polygraphy", folder)
    assert [int(run.contents("float32", 0, round_, "target.embed")[0, 0]) for round_ in (0, 1)] == [2, 10]
