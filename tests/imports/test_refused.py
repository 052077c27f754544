"""What does not fit is refused: code in a file, two tensors for one place, rows for nothing, ranks that are missing."""

from __future__ import annotations

import json
import pickle
import shutil

import numpy as np
import pytest
import torch

from parity.fixtures.recipe.imports import STAGES
from tests.imports.conftest import RECORDED, verdicts

ROW = "[[row]]\nname = '%s'\nstage = \"%s\"\n"


class Bomb:
    """Unpickling it leaves a file behind."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return open, (str(self.trace), "w")


@pytest.fixture
def arrays(tmp_path):
    """Write a folder of .npy files."""

    def write(**named):
        folder = tmp_path / "arrays"
        folder.mkdir()
        for name, array in named.items():
            np.save(folder / f"{name}.npy", array)
        return folder

    return write


HIDDEN = np.zeros((5, 96), np.float32)


@pytest.mark.parametrize("tool", ["files", "sglang", "nxdi", "aws", "msprobe", "hf"])
def test_a_pickle_is_refused_by_name(tool, dumped, refused, tmp_path):
    if tool == "files":
        folder = tmp_path / "files"
        folder.mkdir()
    elif tool == "hf":
        folder = tmp_path / "hf"
        folder.mkdir()
        (folder / "M_debug_tree_FULL_TENSORS.json").write_text("{}")
    else:
        folder = dumped(tool)
    place = folder / "dp0/decode_b1_0/layers.0.self_attn.q" if tool == "aws" else folder
    if tool == "msprobe":
        index = next(folder.rglob("dump.json"))
        index.write_text(index.read_text().replace("output.0.pt", "output.0.pkl", 1))
        refused(tool, folder, words=(".pkl", "execute"))
    else:
        (place / "odd.pkl").write_bytes(pickle.dumps(Bomb(tmp_path / "trace")))
        refused(tool, folder, words=("odd.pkl", "execute"))
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("tool", ["files", "sglang", "nxdi", "aws", "msprobe"])
def test_a_torch_file_with_more_than_tensors_is_refused(tool, dumped, refused, tmp_path):
    folder = tmp_path / "files" if tool == "files" else dumped(tool)
    folder.mkdir(exist_ok=True)
    path = folder / "target.embed.pt" if tool == "files" else sorted(folder.rglob("*.pt"))[0]
    torch.save({"value": Bomb(tmp_path / "trace"), "meta": {}}, path)
    refused(
        tool,
        folder,
        words=(path.name, "more than tensors"),
        names=None if tool == "files" else RECORDED / f"{tool}.toml",
    )
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("kept", [0, 7, 500])
def test_a_damaged_torch_file_is_refused(kept, refused, tmp_path):
    path = tmp_path / "target.embed.pt"
    torch.save(torch.zeros(5, 96), path)
    path.write_bytes(path.read_bytes()[:kept])
    refused("files", path, words=("target.embed.pt", "damaged"))


def test_objects_in_npy_and_npz_are_refused(refused, tmp_path):
    np.save(tmp_path / "target.embed.npy", np.array([Bomb(tmp_path / "trace")], object), allow_pickle=True)
    refused("files", tmp_path / "target.embed.npy", words=("target.embed.npy", "execut"))
    np.savez(tmp_path / "all.npz", **{"p000/r0000/target.embed": np.array([{}], object)})
    refused("files", tmp_path / "all.npz", words=("all.npz", "execut"))


def test_polygraphy_results_with_a_pickled_tensor_are_refused(dumped, refused, tmp_path):
    import base64
    from io import BytesIO

    held = BytesIO()
    torch.save(Bomb(tmp_path / "trace"), held)
    path = dumped("polygraphy") / "results.json"
    found = json.loads(path.read_text())
    found["lst"][0][1][0]["outputs"]["drafter.fc"]["values"]["tensor"] = base64.b64encode(held.getvalue()).decode()
    path.write_text(json.dumps(found))
    refused("polygraphy", path, words=("drafter.fc", "more than tensors"), names=RECORDED / "polygraphy.toml")
    assert not (tmp_path / "trace").exists()


def test_without_torch_the_sentence_says_so(dumped, refused, monkeypatch):
    from parity.imports import torch_file

    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    folder = dumped("nxdi")
    monkeypatch.setattr(torch_file, "import_module", absent)
    refused("nxdi", folder, words=("torch is not installed", "safetensors"), names=RECORDED / "nxdi.toml")


def test_two_tensors_for_one_place(arrays, refused):
    names = ROW % ("[ab]", "target.embed") + 'round = "0"\n'
    refused("files", arrays(a=HIDDEN, b=HIDDEN), words=("two tensors", "target.embed", "a.npy", "b.npy"), names=names)


def test_a_row_that_matches_nothing(arrays, refused):
    names = ROW % ("a", "target.embed") + 'round = "0"\n' + ROW % ("nothing", "target.logits")
    refused("files", arrays(a=HIDDEN), words=("row 1", "nothing"), names=names)


def test_nothing_mapped_at_all(arrays, refused):
    refused("files", arrays(a=HIDDEN), words=("no tensor", "like a"))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('name = "a"\nstage = "target.layer.0.out"\nround = "0"', ("target.layer.0.out", "no stage")),
        ('name = "a"\nstage = "target.layers.8.out"\nround = "0"', ("target.layers.8.out", "no stage")),
        ('name = "a"\nstage = "target.embed"', ("{step}", "no value")),
        ('name = "a"\nstage = "target.embed"\nround = "0"\nprompt = "1"', ("prompt 1", "0 … 0")),
        ('name = "a"\nstage = "target.embed"\nround = "0"\naxes = ["S", "V"]', ("['S', 'V']", "['S', 'H']")),
        ('name = "a"\nstage = "target.embed"\nround = "0"\naxes = ["B", "S", "H"]', ("[5, 96]", "[B,S,H]")),
        ('name = "a"\nstage = "target.embed"\nround = "0"\nsharding = "N"', ("sharding 'N'", "S, H")),
        ('name = "("\nstage = "target.embed"', ("regular expression",)),
        ('name = "a"\nstage = "target.layers.{l}.out"', ("{l}", "no group")),
        ('name = "a"', ("stage", "ignore")),
        ('name = "a"\nstages = "target.embed"', ("stages",)),
        ('name = "a"\nstage = "target.layers.0.q"\nround = "0"\naxes = ["S", "N*D"]\nrows = "::2"', ("rows",)),
        ('name = "a"\nstage = "target.embed"\nround = "7"\npadded = true', ("round 7",)),
    ],
)
def test_a_map_that_does_not_fit(row, words, arrays, refused):
    refused("files", arrays(a=HIDDEN), words=words, names=f"[[row]]\n{row}\n")


def test_a_batch_without_its_prompts(arrays, refused):
    names = ROW % ("a", "target.embed") + 'round = "0"\naxes = ["B", "S", "H"]\n'
    refused("files", arrays(a=np.zeros((2, 5, 96), np.float32)), words=("B has size 2", "1 prompts"), names=names)


def test_a_missing_rank(dumped, refused):
    folder = dumped("aws")
    next(folder.rglob("layers.0.self_attn.q/rank1.pt")).unlink()
    refused("aws", folder, words=("target.layers.0.q", "ranks [0]", "0 … 1"), names=RECORDED / "aws.toml")


def test_fewer_ranks_than_the_run_had(dumped, refused, tmp_path):
    folder = dumped("sglang")
    for path in folder.glob("*rank=1___*"):
        path.unlink()
    refused("sglang", folder, words=("by 2 ranks", "files of 1"), names=RECORDED / "sglang.toml")


def test_fewer_ranks_than_the_map_says(dumped, refused):
    text = (RECORDED / "msprobe.toml").read_text().replace("[run]", "[run]\nranks = 2")
    refused("msprobe", dumped("msprobe"), words=("ranks [0]", "0 … 1"), names=text)


@pytest.mark.parametrize(("tool", "kind"), [("nxdi", "*.pt"), ("msprobe", "*.pt"), ("aws", "*_meta.json")])
def test_a_file_that_should_be_there(tool, kind, dumped, refused):
    folder = dumped(tool)
    path = sorted(folder.rglob(kind))[0]
    path.unlink()
    refused(tool, folder, words=(path.name,), names=RECORDED / f"{tool}.toml")


@pytest.mark.parametrize("tool", ["sglang", "polygraphy", "msprobe", "nxdi", "aws", "hf", "files"])
def test_a_folder_of_another_kind(tool, refused, tmp_path):
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "notes.md").write_text("nothing")
    refused(tool, folder, words=())


def test_statistics_are_no_tensors(dumped, refused):
    folder = dumped("msprobe")
    for step in ("step1", "step2", "step3"):
        shutil.rmtree(folder / step)
    index = next(folder.rglob("dump.json"))
    index.write_text(index.read_text().replace("data_name", "md5"))
    refused("msprobe", folder, words=("statistics",))


def test_printed_tensors_are_no_tensors(refused, tmp_path):
    tree = {"outputs": {"shape": "[1]", "dtype": "torch.float32", "value": ["tensor([1.])"]}}
    (tmp_path / "M_debug_tree_FULL_TENSORS.json").write_text(json.dumps(tree))
    refused("hf", tmp_path, words=("use_repr=False",))


def test_what_is_not_mapped_is_listed(parity, dumped, short_golden, tmp_path):
    names = tmp_path / "few.toml"
    names.write_text("\n[[row]]".join((RECORDED / "nxdi.toml").read_text().split("\n[[row]]")[:2]))
    report = tmp_path / "import.json"
    files = ("--map", names, "--out", tmp_path / "run", "--json", report)
    found = parity("import", "--from", "nxdi", dumped("nxdi"), "--golden", short_golden.folder, *files)
    assert found.code == 0 and "drafter.fc output is not mapped (4 times)" in found.out
    assert len(json.loads(report.read_text())["unmapped"]) == 20


def test_stages_that_were_not_dumped_fail_the_diff(dumped, imported, short_golden, parity):
    run = imported("nxdi", dumped("nxdi"), names=RECORDED / "nxdi.toml")
    found = parity("diff", run.folder, "--golden", short_golden.folder)
    assert found.code == 1 and "first divergent" in found.last
    assert set(verdicts(short_golden, run)) == set(STAGES)


def test_an_import_is_no_golden(dumped, imported, parity, short_run):
    run = imported("nxdi", dumped("nxdi"), names=RECORDED / "nxdi.toml")
    found = parity("diff", short_run.folder, "--golden", run.folder)
    assert found.code == 2 and "golden comes from a reference" in found.err


@pytest.mark.parametrize("stage", ["target.layers.0.k", "kv.target.0.k"])
def test_ranks_of_different_shapes(stage, arrays, refused):
    folder = arrays(a0=np.zeros((5, 1, 32), np.float32), a1=np.zeros((4, 1, 32), np.float32))
    names = f'[[row]]\nname = \'a(?P<rank>.)\'\nstage = "{stage}"\nround = "0"\nsharding = "G"\n'
    refused("files", folder, words=(stage, "ranks disagree"), names=names)
