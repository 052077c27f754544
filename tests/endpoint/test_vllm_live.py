"""vLLM's own server, where `make vllm` has set it up: clean it passes, what is planted in it fails where it shows."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from parity.api import judge_endpoint, open_golden
from tests import vllm_processor
from tests.endpoint.serving import forwarding, serving, vllm

pytestmark = [
    pytest.mark.skipif("PARITY_VLLM_PYTHON" not in os.environ, reason="`make vllm` runs this"),
    vllm_processor.rounds,
]


@pytest.fixture(scope="module")
def golden(full_golden):
    return open_golden(full_golden.folder)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def clean(work, tiny):
    with vllm(work, tiny / "target", tiny / "drafter") as url:
        yield url


@pytest.fixture(scope="module")
def plain(work, tiny):
    with vllm(work, tiny / "target", None) as url:
        yield url


def verdicts(report) -> dict[str, str]:
    return {f"{result.gate}: {check.name}": check.verdict for result in report.results for check in result.checks}


def failing(report) -> set[str]:
    return {name for name, verdict in verdicts(report).items() if verdict not in ("pass", "not judged")}


def test_clean_servers_pass_side_by_side(golden, clean, plain):
    report = judge_endpoint(golden, clean, plain)
    assert report.exit_code == 0 and failing(report) == set(), verdicts(report)
    passed = {name for name, verdict in verdicts(report).items() if verdict == "pass"}
    assert {"server: acceptance length", "server: prompt log-probabilities", "both: speculation on = off"} <= passed


def test_temperature_in_the_place_of_greedy(golden, clean):
    with serving(forwarding(clean, lambda body: body | {"temperature": 1.0, "seed": 7})) as url:
        report = judge_endpoint(golden, url)
    assert report.exit_code == 1 and "server: greedy continuations" in failing(report)
    assert "server: prompt log-probabilities" not in failing(report)


def test_a_server_that_does_not_speculate_is_told(golden, plain):
    report = judge_endpoint(golden, plain)
    assert report.exit_code == 3 and failing(report) == {"server: acceptance length"}
    assert judge_endpoint(golden, plain, speculates=False).exit_code == 0


def changed(tiny: Path, out: Path, change) -> Path:
    """A copy of the drafter with other weights."""
    shutil.copytree(tiny / "drafter", out)
    weights = load_file(out / "model.safetensors")
    save_file(change(weights), out / "model.safetensors", {"format": "pt"})
    return out


def tapping(*taps: int):
    """The drafter with other taps than (2, 4, 5)."""

    def fault(tiny: Path, out: Path) -> Path:
        config = json.loads((shutil.copytree(tiny / "drafter", out) / "config.json").read_text())
        config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = list(taps)
        (out / "config.json").write_text(json.dumps(config))
        return out

    return fault


def of_another_seed(tiny: Path, out: Path) -> Path:
    """The same architecture, its fusion's weights drawn anew: as of a training that has not begun."""
    import numpy as np

    draw = np.random.default_rng(7)

    def change(weights):
        for name, value in weights.items():
            if value.ndim == 2 and name.startswith(("fc", "midlayer")):
                weights[name] = draw.permutation(value.reshape(-1)).reshape(value.shape)
        return weights

    return changed(tiny, out, change)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        pytest.param(tapping(1, 2, 3), 1, id="first-layers-tapped"),
        # A loss of 7 %, limits 3.5 % and 10 %: 24 prompts exclude neither 5 % nor none. No pass, and said so.
        pytest.param(tapping(3, 5, 6), 3, id="one-layer-late"),
        pytest.param(of_another_seed, 1, id="another-seed"),
    ],
)
def test_a_wrong_drafter_shows_in_its_acceptance_alone(fault, code, golden, tiny, tmp_path):
    with vllm(tmp_path, tiny / "target", fault(tiny, tmp_path / "drafter")) as url:
        report = judge_endpoint(golden, url)
    assert report.exit_code == code and failing(report) == {"server: acceptance length"}, verdicts(report)
    assert any("lossless" in said for said in report.unseen)


def test_a_target_without_sinks_shows_in_its_log_probabilities(golden, tiny, work):
    target = shutil.copytree(tiny / "target", work / "no-sinks")
    for path in target.glob("*.safetensors"):
        weights = load_file(path)
        save_file({k: v - 100 if k.endswith("sinks") else v for k, v in weights.items()}, path, {"format": "pt"})
    with vllm(work, target, None) as url:
        report = judge_endpoint(golden, url, speculates=False)
    assert report.exit_code == 1 and "server: prompt log-probabilities" in failing(report), verdicts(report)
