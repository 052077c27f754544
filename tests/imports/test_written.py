"""The device's whole run, written as plain files or by the model debugger, comes back as it was."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from parity.fixtures.recipe.imports import STAGES, Replay, batched, steps
from parity.golden.manifest import key
from parity.stages import PAGES, QUANTISED, TABLE
from tests.imports.conftest import RECORDED, verdicts

FORCED = json.dumps([stage.template for stage in TABLE if stage.forced and stage.needs not in (PAGES, QUANTISED)])
RUN = f'[run]\nname = "numpy"\nprecision = "bfloat16"\nforced = {FORCED}\n\n'


def whole(run) -> dict[str, torch.Tensor]:
    """Every tensor of a run by its key."""
    found = {}
    for variant, prompt, round_, stage in run.rows:
        array = run.contents(variant, prompt, round_, stage)
        value = torch.from_numpy(array.astype(np.float32 if array.dtype.name == "bfloat16" else array.dtype))
        found[key(prompt, round_, stage)] = value.bfloat16() if array.dtype.name == "bfloat16" else value
    return found


@pytest.fixture
def stage_names(tmp_path):
    """A map for names that are keys already, with how the run was made."""
    rows = "[[row]]\nname = '(?:tensors/)?p(?P<prompt>\\d+)/r(?P<round>\\d+)/(?P<stage>.+)'\nstage = \"{stage}\"\n"
    path = tmp_path / "keys.toml"
    path.write_text(RUN + rows)
    return path


@pytest.fixture(params=["folder of .pt", ".pt", ".safetensors", "exported .npz", "folder of .npy"])
def written(request, short_run, tmp_path, parity):
    """The run's tensors as files of one kind."""
    out, tensors = tmp_path / "tensors", whole(short_run)
    if request.param == "exported .npz":
        out = out.with_suffix(".npz")
        assert parity("export", short_run.folder, out).code == 0
    elif request.param == ".safetensors":
        out = out.with_suffix(".safetensors")
        save_file(tensors, out)
    elif request.param == ".pt":
        out = out.with_suffix(".pt")
        torch.save(tensors, out)
    else:
        for name, value in tensors.items():
            path = out / f"{name}.{request.param[-3:].lstrip('.')}"
            path.parent.mkdir(parents=True, exist_ok=True)
            wide = value.float() if value.is_floating_point() else value
            torch.save(value, path) if path.suffix == ".pt" else np.save(path, wide.numpy())
    return out


@pytest.fixture(scope="module")
def own():
    """The run's own verdict, asked for once."""
    return []


def test_plain_files_come_back_with_the_same_verdict(
    written, own, stage_names, short_golden, short_run, tmp_path, parity
):
    out = tmp_path / "run"
    made = parity(
        "import", "--from", "files", written, "--golden", short_golden.folder, "--map", stage_names, "--out", out
    )
    assert made.code == 0, made.err
    found, *first = (
        parity("diff", run, "--golden", short_golden.folder, "--json", tmp_path / "j")
        for run in (out, *([] if own else [short_run.folder]))
    )
    own += [(one.code, one.last) for one in first]
    assert (found.code, found.last) == own[0] and found.code == 0


def test_every_bit_comes_back(short_run, imported, stage_names, tmp_path):
    save_file(whole(short_run), tmp_path / "all.safetensors")
    run = imported("files", tmp_path / "all.safetensors", names=stage_names)
    assert {place: row.sha256 for place, row in run.rows.items()} == {
        p: row.sha256 for p, row in short_run.rows.items()
    }


def test_the_model_debugger_s_folders(short_run, short_golden, imported, tmp_path):
    from transformers.model_debugging_utils import model_addition_debugger_context

    folders = []
    for number, step in enumerate(steps(short_run)):
        tensors = batched(step)
        model = Replay(list(tensors))
        folders.append(tmp_path / f"pass{number}")
        with model_addition_debugger_context(model, debug_path=str(folders[-1]), use_repr=False):
            model(tensors)
    names = tmp_path / "hf.toml"
    text = (RECORDED / "msprobe.toml").read_text()
    names.write_text(text.replace(r"Module\.", r"Replay\.").replace(r"\.Identity\.forward\.0\.output\.0", "_outputs"))
    run = imported("hf", *folders, names=names)
    assert verdicts(short_golden, run) == dict.fromkeys(STAGES, "pass")
    assert all(run.rows[place].sha256 == short_run.rows[place].sha256 for place in run.rows)


def test_the_model_debugger_on_the_target_itself(tiny, short_golden, imported):
    """Prefill of the tiny target in transformers, by the map that ships; layers are known by what enters them."""
    from transformers import GptOssForCausalLM
    from transformers.model_debugging_utils import model_addition_debugger_context

    model = GptOssForCausalLM.from_pretrained(tiny / "target", dtype=torch.bfloat16, attn_implementation="eager")
    folder = short_golden.folder.parent / "debugger"
    ids = torch.tensor([short_golden.manifest.case.prompts[0].ids])
    with torch.no_grad(), model_addition_debugger_context(model, debug_path=str(folder), use_repr=False):
        model(ids)
    run = imported("hf", folder, names="hf-gpt-oss")
    for (variant, prompt, round_, stage), row in run.rows.items():
        true = short_golden.contents("float32", prompt, round_, stage)
        seen = run.contents(variant, prompt, round_, stage)
        assert seen.shape == true.shape, stage
        # 10 %: bfloat16 through eight layers; another layer's or another module's tensor is off by 100 %.
        assert row.dtype == "int64" or np.linalg.norm(seen.astype(np.float32) - true) < 0.1 * np.linalg.norm(true), (
            stage
        )
    layers = short_golden.manifest.model.num_layers
    assert {f"target.layers.{layer}.out" for layer in range(layers)} < set(run.manifest.stages)
    assert {"target.embed", "target.logits", "target.layers.7.v", "target.layers.7.experts"} < set(run.manifest.stages)
