"""Foreign files that would hang, fill the memory, run code or lead elsewhere: one sentence, exit 2, at once."""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from parity import files
from parity.errors import UsageError
from parity.imports.arrays import leaves, members
from parity.imports.names import read_map
from parity.nightly.expand import cells
from parity.nightly.matrix import read_matrix
from parity.policy import read_policy

ROW = '[[row]]\nname = "%s"\nstage = "target.embed"\n'


def refused(action, *arguments) -> str:
    with pytest.raises(UsageError) as error:
        action(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def text(folder: Path, content: str) -> Path:
    (folder / "file.toml").write_text(content)
    return folder / "file.toml"


READERS = {
    "policy": lambda path: read_policy(path, "bfloat16"),
    "map": lambda path: read_map(str(path)),
    "matrix": read_matrix,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "folder", "nested", "digits", "large", "binary"])
def test_a_text_that_is_none(kind, read, tmp_path):
    path = tmp_path / "file.toml"
    make = {
        "pipe": lambda: os.mkfifo(path), "folder": path.mkdir, "nested": lambda: path.write_text("a = " + "[" * 20_000),
        "digits": lambda: path.write_text("a = " + "9" * 5000), "large": lambda: path.write_text("#" * (5 << 20)),
        "binary": lambda: path.write_bytes(b"\xff\xfe"), "/dev/zero": lambda: path.symlink_to("/dev/zero"),
    }  # fmt: skip
    make[kind]()
    refused(read, path)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(.*a){20}"])
def test_a_pattern_takes_time_in_proportion(pattern, tmp_path):
    from parity.imports.names import pattern as compiled

    read_map(str(text(tmp_path, ROW % pattern)))
    assert compiled(pattern).fullmatch("a" * 50_000 + "!") is None


@pytest.mark.parametrize("pattern", ["(?=a)a", "(a)(?P=b)", "((((a{99}){99}){99}){99})", "("])
def test_a_pattern_of_another_engine_is_refused(pattern, tmp_path):
    assert "RE2" in refused(read_map, str(text(tmp_path, ROW % pattern)))


def test_a_matrix_is_counted_before_it_is_made(tmp_path):
    many = ", ".join(map(str, range(1, 5000)))
    matrix = text(tmp_path, f'k = [{many}]\ntp = [{many}]\n[cases.a]\ntarget = "t"\ndrafter = "d"\nprompts = "p"\n'
                            'max_new_tokens = 4\n[devices]\nd = "numpy"\n')  # fmt: skip
    assert "24990001 cells" in refused(lambda: cells(read_matrix(matrix)))


def npz(shape: str, data: bytes, method=zipfile.ZIP_DEFLATED) -> io.BytesIO:
    """An archive of one array that claims a shape."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data)
    out.seek(0)
    return out


@pytest.mark.parametrize(
    "shape", ["(2**40,)", "(1099511627776,)", "(-1,)", "(1,) * 70", "(1, 1, 1, 1, 1, 1, 1, 1, 1)", "(0, -3)", "['a']"]
)
def test_an_array_that_claims_more_than_its_file_holds(shape):
    refused(lambda: [read() for read in members(npz(shape, b"\0" * 16), "file").values()])


def test_an_archive_that_unfolds_is_refused_by_its_directory(monkeypatch):
    monkeypatch.setattr("parity.limits.UNFOLDED_BYTES", 2**16)
    assert "unfolds" in refused(members, npz("(32768,)", b"\0" * 2**17), "file")
    assert members(npz("(32768,)", b"\0" * 2**17, zipfile.ZIP_STORED), "file")["a"]().shape == (32768,)


def test_an_array_of_objects_is_refused():
    out = io.BytesIO()
    np.savez(out, a=np.array([{}], dtype=object))
    out.seek(0)
    assert "pickled" in refused(lambda: members(out, "file")["a"]())


def test_containers_that_hold_each_other_many_times_are_refused():
    value: object = {}
    for _ in range(40):
        value = {"a": value, "b": value}
    assert "more than" in refused(leaves, value, Path("x.pt"))


@pytest.mark.parametrize(
    "number", ["num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings", "intermediate_size"]
)
@pytest.mark.parametrize("side", ["target", "drafter"])
@pytest.mark.parametrize("value", [2**40, -1, "7", 1.5, 10**400])
def test_a_config_number_beyond_any_model(number, side, value, tiny, tmp_path):
    from parity.device.checkpoint import Described
    from parity.device.config import open_config
    from parity.references.checkpoint import read_config

    folder = tmp_path / "c"
    folder.mkdir()
    raw = json.loads((tiny / side / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {number: value}))
    kinds = {"target": ("GptOssForCausalLM", "gpt_oss"), "drafter": ("LlamaForCausalLMEagle3", "llama")}[side]
    assert number in refused(read_config, folder, kinds[0])
    assert number in refused(lambda: open_config(Described(folder), kinds[1]).integer(number))


TEMPLATES = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "memory": "{{ ('a' * 999999999) * 99 }}",
    "length": "{{ 'ab' * 20000000 }}",
    "refusal": "{{ raise_exception('no') }}",
    "reach": "{{ messages.__class__.__mro__[1].__subclasses__() }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_chat_template_is_rendered_within_limits(name, tiny, tmp_path, monkeypatch):
    from parity.references import template
    from parity.references.prompts import read_prompts

    monkeypatch.setattr(template, "SECONDS", 1)
    folder = Path(shutil.copytree(tiny / "target", tmp_path / "t", ignore=shutil.ignore_patterns("*.safetensors")))
    (folder / "chat_template.jinja").write_text(TEMPLATES[name])
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    assert "chat template" in refused(read_prompts, prompts, folder, 2000)


def test_one_process_renders_all_prompts_each_within_limits(tiny, tmp_path, monkeypatch):
    from parity.references import template
    from parity.references.prompts import read_prompts

    monkeypatch.setattr(template, "SECONDS", 1)
    folder = Path(shutil.copytree(tiny / "target", tmp_path / "t", ignore=shutil.ignore_patterns("*.safetensors")))
    loops = TEMPLATES["loops"]
    (folder / "chat_template.jinja").write_text(
        "said {{ messages[0].content }}{% if messages[0].content == 'b' %}" + loops + "{% endif %}"
    )
    prompts = tmp_path / "p.jsonl"
    lines = [json.dumps({"messages": [{"role": "user", "content": said}]}) for said in ("a", "c", "a", "b")]
    prompts.write_text("\n".join(lines[:3]))
    (_, first), (_, second), (_, third) = read_prompts(prompts, folder, 2000)
    assert first == third != second
    prompts.write_text("\n".join(lines))
    assert "chat template" in refused(read_prompts, prompts, folder, 2000)


@pytest.mark.parametrize("name", ["loops", "refusal"])
def test_a_hypothesis_renders_a_chat_template_within_limits(name, tiny, tmp_path, monkeypatch):
    from parity.references import template
    from parity.references.hypotheses import NotApplicable
    from parity.references.hypotheses.inputs import template as template_of

    monkeypatch.setattr(template, "SECONDS", 1)
    folder = Path(shutil.copytree(tiny / "target", tmp_path / "t", ignore=shutil.ignore_patterns("*.safetensors")))
    opening, closing = template_of(str(folder))
    assert opening and closing
    (folder / "chat_template.jinja").write_text(TEMPLATES[name])
    with pytest.raises(NotApplicable, match="chat template"):
        template_of(str(folder))


def test_a_tokenizer_that_brings_code_runs_none_and_asks_nothing(tiny, tmp_path, monkeypatch):
    from parity.references.prompts import read_prompts

    folder = Path(shutil.copytree(tiny / "target", tmp_path / "t", ignore=shutil.ignore_patterns("*.safetensors")))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Evil"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on standard input"))
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"text": "hi"}\n')
    try:
        read_prompts(prompts, folder, 2000)
    except UsageError as error:
        assert "no usable tokenizer" in str(error)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("line", [
    '{"ids": [1, 2], "id": "a\\nb"}', '{"ids": {"a": 1}}', '{"text": 5}', "[" * 9000, "7", '{"ids": [true, 2]}',
    '{"ids": [1, 2], "id": "a"}\n{"ids": [1, 2], "id": "a"}',
])  # fmt: skip
def test_a_prompt_that_is_none(line, tiny, tmp_path):
    from parity.references.prompts import read_prompts

    (tmp_path / "p.jsonl").write_text(line)
    refused(read_prompts, tmp_path / "p.jsonl", tiny / "target", 2000)


@pytest.mark.parametrize("read", ["prompts", "weights"])
def test_a_pipe_where_a_file_is_due(read, tiny, tmp_path):
    from parity.golden.provenance import checkpoint
    from parity.references.prompts import read_prompts

    os.mkfifo(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    pipe = tmp_path / "model.safetensors"
    refused(lambda: read_prompts(pipe, tiny / "target", 9) if read == "prompts" else checkpoint(tmp_path))


@pytest.mark.parametrize("name", ["../x:y", "/x:y", "..:y", "a..b:y", ":y", "a b:y"])
def test_a_device_that_is_no_module(name, parity, shallow_golden):
    found = parity("run", "--golden", shallow_golden.folder, "--device", name)
    assert found.code == 2 and "package.module:factory" in found.err, found.err


def test_a_cell_whose_name_leads_out_of_its_night(tmp_path):
    from parity.nightly.records import CellAxes, read_record

    (tmp_path / "axes").write_text(json.dumps(dict(case="../../x", device="d", family="f", k=4, tp=1, policy="p")))
    assert "case" in refused(read_record, CellAxes, tmp_path / "axes")


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "../inner/../model.safetensors"])
def test_an_index_that_leads_out_of_a_checkpoint_is_refused_by_the_references(shard, tiny, tmp_path):
    from parity.references.checkpoint import shards

    folder = tmp_path / "inner"
    folder.mkdir()
    for place in (folder, tmp_path):
        os.link(tiny / "drafter" / "model.safetensors", place / "model.safetensors")
    index, name = folder / "model.safetensors.index.json", next(iter(shards(folder)))
    index.write_text(json.dumps({"weight_map": {name: "model.safetensors"}}))
    assert shards(folder)[name].parent == folder
    index.write_text(json.dumps({"weight_map": {name: shard}}))
    assert f"places tensor {name} in {shard}, which does not hold it" in refused(shards, folder)


@pytest.mark.parametrize("side", ["target", "drafter"])
def test_a_config_that_brings_code_runs_none_and_asks_nothing(side, tiny, tmp_path, monkeypatch):
    from parity.device.checkpoint import Described
    from parity.device.config import open_config
    from parity.references.checkpoint import read_config
    from parity.references.hf_checkpoint import target_config

    folder = Path(shutil.copytree(tiny / side, tmp_path / "c", copy_function=os.link))
    raw = json.loads((folder / "config.json").read_text())
    raw |= {"auto_map": dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForCausalLM"), "evil.Evil")}
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(raw))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on standard input"))
    kinds = {"target": ("GptOssForCausalLM", "gpt_oss"), "drafter": ("LlamaForCausalLMEagle3", "llama")}[side]
    assert read_config(folder, kinds[0])["auto_map"] and open_config(Described(folder), kinds[1])
    if side == "target":
        assert target_config(folder).num_hidden_layers == raw["num_hidden_layers"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("old", [None, b"old"])
def test_a_full_disk_leaves_what_was_there(old, tmp_path, monkeypatch):
    path = tmp_path / "file"
    if old:
        path.write_bytes(old)

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in refused(files.put, path, b"new")
    assert [one.name for one in tmp_path.iterdir()] == (["file"] if old else [])
    assert not old or path.read_bytes() == old


def test_json_goes_to_a_device_as_it_is(parity):
    assert parity("taps", "--layers", 24, "--json", "/dev/null").code == 0
    found = parity("taps", "--layers", 24, "--json", "/dev/full")
    assert found.code == 2 and "No space left" in found.err


def test_a_dump_onto_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    from safetensors import SafetensorError

    from parity.golden.writer import DumpWriter
    from parity.stages import declared

    def full(tensors, path):
        Path(path).write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("parity.golden.shards.save_file", full)

    def dump():
        with DumpWriter(tmp_path / "out") as writer:
            writer.add(0, "float32", declared(1, 1).values(), {(0, "target.embed"): np.ones((2, 3), np.float32)})

    assert "No space left" in refused(dump) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [np.array([[{}]], object), np.ones((1, 1), complex), np.array([["a"]])])
def test_a_tensor_that_no_file_holds(value, tmp_path):
    from parity.golden.writer import DumpWriter
    from parity.stages import declared

    def dump():
        with DumpWriter(tmp_path / "out") as writer:
            writer.add(0, "float32", declared(1, 1).values(), {(0, "target.embed"): value})

    assert "target.embed" in refused(dump)
