"""The commands as a user meets them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import parity as package
from parity.api import run_device
from parity.cli import cli
from parity.cli.verbs import GROUPS
from tests.sample import WHOLE
from tests.shallow import cut_pair

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "new-device", "dump-golden", "run", "check-device", "diff", "gate", "shapes", "scan-log", "diagnose", "reduce",
    "inspect", "nightly", "report", "history", "ratchet", "demo", "verify-golden",
)  # fmt: skip


@pytest.fixture(scope="module")
def small_run(shallow_golden, tmp_path_factory):
    return run_device(shallow_golden, "numpy", "chained", out=tmp_path_factory.mktemp("run") / "chained")


def python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, parity):
    found = parity(command, "--help")
    assert found.code == 0 and "--json FILE" in found.out


def test_help_lists_the_commands_by_what_they_are_for_in_the_order_of_use(parity):
    listed = parity("--help").out
    marks = ("Make:", "  dump-golden ", "Compare:", "  diff ", "  gate ", "Explain:", "  diagnose ", "Nights:")
    places = [listed.index(mark) for mark in (*marks, "  nightly ", "The harness itself:", "  demo ")]
    assert places == sorted(places)
    assert list(cli.commands) == [verb.name for members in GROUPS.values() for verb in members]
    assert all(command.name == name for name, command in cli.commands.items())


@pytest.mark.parametrize(
    ("name", "example"), [(verb.name, verb.example) for members in GROUPS.values() for verb in members]
)
def test_the_example_of_each_help_can_be_run(name, example, parity):
    program, named, *words = shlex.split(example.partition(" > ")[0])
    assert (program, named) == ("parity", name)
    cli.commands[name].make_context(name, words)  # raises where an option or argument is not the command's
    assert f"Example: {example.split()[0]} {name}" in " ".join(parity(name, "--help").out.split())


def test_inspect_shows_the_families_and_every_stage_where_asked(parity, small_golden):
    every, families = parity("inspect", small_golden.folder, "--all").out, parity("inspect", small_golden.folder).out
    assert all(f"{name} " in every for name in small_golden.manifest.stages)
    assert "target.layers.3.out " not in families and re.search(r"target.layers.{l}.out +0-7 +S,H", families), families
    assert all(f"{named.stage.template} " in families for named in small_golden.declared.values())


def test_diff_of_one_stage_is_a_valid_command(parity, shallow_golden, tmp_path):
    file = tmp_path / "diff.json"
    found = parity("diff", "--golden", shallow_golden.folder, "--stage", "logits", "--json", file)
    assert found.code == 0, found
    result = json.loads(file.read_text())
    assert [stage["stage"] for stage in result["stages"]] == ["target.logits", "verify.logits", "drafter.logits"]
    assert result["verdict"] == "pass" and result["exit_code"] == 0
    assert found.err == "", "progress is for terminals"


def test_a_verdict_is_the_last_line(parity, shallow_golden, small_run):
    assert parity("diff", small_run.folder, "--golden", shallow_golden.folder).last == "chained verdict: pass"


def test_what_needs_no_torch_works_without_and_what_does_says_what_to_install(shallow_golden, small_run, tmp_path):
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\nfrom parity.cli import command\n"
        "for words in sys.argv[1:]:\n    sys.argv[:] = ['parity', *words.split()]\n"
        "    print('code', command(), file=sys.stderr, flush=True)"
    )
    found = python(
        code,
        "--help",
        f"diff {small_run.folder} --golden {shallow_golden.folder}",
        f"dump-golden --out {tmp_path / 'golden'}",
        "dump-golden --plan",
        "bench --device numpy -k 2",
    )
    lines = found.stderr.splitlines()
    assert lines.count("code 0") == 2 and lines[-7] == "code 0", found
    assert lines[-5::2] == ["code 2"] * 3, found
    missing = [line.partition("references need ")[2].partition(":")[0] for line in lines[-6::2]]
    assert missing == ["torch", "torch", "transformers"], found


def test_an_interrupted_dump_leaves_nothing(parity, tmp_path, monkeypatch):
    prompts = tmp_path / "one.jsonl"
    prompts.write_text('{"id": "one", "ids": [5, 6, 7]}\n')

    def interrupted(*given):
        assert list(parity.home.glob("goldens/.*"))
        raise KeyboardInterrupt

    monkeypatch.setattr("parity.golden.writer.DumpWriter.add", interrupted)
    found = parity("dump-golden", "--prompts", prompts, "--max-new-tokens", "1")
    assert found.code == 130 and "interrupted" in found.err
    assert list(parity.home.glob("goldens/*")) == list(parity.home.glob("goldens/.*")) == []


def test_a_device_that_breaks_down_is_inconclusive(parity, shallow_golden):
    found = parity("diff", "--golden", shallow_golden.folder, "--device", "tests.faults.broken:breaks_in_draft")
    assert found.code == 3 and "round 1" in found.err and found.err.count("\n") == 1
    assert not list(parity.home.rglob("*.safetensors"))


@pytest.mark.parametrize("device", ["numpy,nonsense=2", "parity.device.variants:tp_2,tp=4"])
def test_an_option_that_the_device_does_not_take_is_wrong_usage(device, parity, shallow_golden):
    found = parity("diff", "--golden", shallow_golden.folder, "--device", device)
    assert found.code == 2 and "takes no" in found.err and found.err.count("\n") == 1


def test_a_device_of_ranks_is_one_for_every_command(parity, shallow_golden):
    more = ("--only", "boundary") if WHOLE else ()  # to its own maximum, 20 s
    found = parity("gate", "--golden", shallow_golden.folder, "--device", "numpy,tp=2", "--only", "decisions", *more)
    assert found.code == 0, found


def test_a_folder_that_cannot_be_written_is_one_sentence(parity, shallow_golden, tmp_path):
    (tmp_path / "file").write_text("")
    found = parity("run", "--golden", shallow_golden.folder, "--out", tmp_path / "file" / "run")
    assert found.code == 2 and found.err.count("\n") == 1 and "file" in found.err


def test_a_golden_of_one_stage_keeps_the_choices_and_what_they_are_judged_by(
    parity, tiny, remake_small_golden, tmp_path
):
    few = dict(stages=("pre_head_hidden",), max_new_tokens=4)
    golden = remake_small_golden(tmp_path / "golden", **few, **cut_pair(tiny, tmp_path))
    kept = {name.rsplit(".", 1)[-1] for name in golden.manifest.stages}
    assert kept == {
        *("pre_head_hidden", "tokens", "logits", "draft_tokens", "experts", "router_logits", "length", "emitted"),
    }
    assert parity("diff", "--golden", golden.folder).code == 0
    assert "dump it without --stage" in parity("diff", "--golden", golden.folder, "--mode", "local").err


@pytest.mark.parametrize("command", [(), ("faults",)])
def test_a_command_without_a_word_prints_its_help_and_has_not_passed(command, parity):
    found = parity(*command)
    assert found.code == 2 and found.err.startswith("Usage: ") and found.err == parity(*command, "--help").out


def test_debug_shows_the_traceback_and_ends_with_the_same_code(parity, shallow_golden):
    arguments = ("diff", "--golden", shallow_golden.folder, "--device", "tests.faults.broken:breaks_in_draft")
    plain, debug = parity(*arguments), parity("--debug", *arguments)
    assert plain.code == debug.code == 3
    assert (
        "IndexError" in debug.err and "Traceback" in debug.err and debug.err.endswith(plain.err.splitlines()[-1] + "\n")
    )


def test_a_bfloat16_diff_fails_by_a_constant_that_its_noise_hides_and_says_what_else_it_cannot_see(
    parity, shallow_golden, tmp_path
):
    found = parity(
        "diff",
        "--golden",
        shallow_golden.folder,
        "--device",
        "parity.device.faults:const_swiglu_alpha",
        "--json",
        tmp_path / "j",
    )
    assert found.code == 1 and "target: swiglu_alpha is 1.7, the reference reads 1.702" in found.last
    report = json.loads((tmp_path / "j").read_text())
    assert [finding["kind"] for finding in report["findings"]] == ["config"] and report["first"] is None
    assert "not seen       in bfloat16" in found.out and "float32 shows them" in report["unseen"][0]


def test_a_checkout_that_is_not_installed_says_so_for_its_version(parity, monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.delitem(vars(package), "__version__", raising=False)
    assert parity("--version").code == 0
    monkeypatch.delitem(vars(package), "__version__", raising=False)
    monkeypatch.setattr(metadata, "version", absent)
    ended = parity("--version")
    assert ended.code == 0 and ended.out == "parity, version not installed\n"
    monkeypatch.delitem(vars(package), "__version__", raising=False)
