"""What bfloat16 cannot see: in float32 the gates see it, and without float32 they say that they did not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from parity import device
from parity.compare.constants import check_constants
from parity.device.faults import CATALOGUE
from parity.errors import NotOffered, UsageError
from parity.gates import stages
from parity.gates.context import GateContext
from parity.gates.gate import Check, GateReport, GateResult
from parity.golden.provenance import with_constants
from parity.golden.trust import trusted
from parity.golden.views import GoldenSlice
from parity.reports.gates import print_gates

ROUNDING = "hides in its rounding"


@pytest.fixture(scope="module")
def asked(shallow_golden):
    """What a device of the golden is made with."""
    model = shallow_golden.manifest.model
    return dict(target=Path(model.target.path), drafter=Path(model.drafter.path), k=4)


@pytest.fixture
def context(shallow_golden, asked, tmp_path):
    """A gate context in bfloat16 on a device that `build` makes."""
    fixed, case = asked, shallow_golden.manifest.case
    rounds = len(case.prompts[0].generation.acceptance_length)
    one_prompt = GoldenSlice(trusted(shallow_golden), 0, rounds, case.max_new_tokens)
    return lambda build=device.load: GateContext(
        one_prompt, "device under test", lambda **options: build(**fixed | options), "bfloat16", tmp_path
    )


def planted(name: str):
    return CATALOGUE[name].factory


def test_noise_that_bfloat16_hides_fails_in_float32(context):
    local, chained = stages.float32_checks(context(planted("load-drafter-noise")))
    assert local.verdict == chained.verdict == "fail" and local.place.stage == chained.place.stage == "drafter.fc_out"


def test_a_clean_device_passes_in_float32(context):
    found = list(stages.float32_checks(context()))
    assert [check.verdict for check in found] == ["pass", "pass"]
    assert not GateReport("numpy", "bfloat16", "", (GateResult("stages", tuple(found)),)).unseen


def test_where_the_longest_prompt_drafts_nothing_one_that_drafts_is_judged_as_well(
    shallow_golden, asked, tmp_path, monkeypatch
):
    """As prompt lookup does: its drafts had no row that was judged, and a clean device no verdict."""
    monkeypatch.setattr(stages, "_drafts", lambda golden, prompt: not isinstance(golden, GoldenSlice))
    made = GateContext(
        trusted(shallow_golden), "under test", lambda **options: device.load(**asked | options), "bfloat16", tmp_path
    )
    prompts = shallow_golden.manifest.case.prompts
    longest = max(prompts, key=lambda prompt: len(prompt.ids))
    found = list(stages.float32_checks(made))
    assert [check.verdict for check in found] == ["pass", "pass"]
    assert all(f"prompt {longest.id} and " in check.name for check in found)


def only_bfloat16(refusal: type[Exception]):
    def build(precision: str, **options):
        if precision != "bfloat16":
            raise refusal(f"no {precision} here")
        return device.load(precision=precision, **options)

    return build


def always_bfloat16(precision: str, **options):
    return device.load(precision="bfloat16", **options)


@pytest.mark.parametrize("build", [*map(only_bfloat16, (ValueError, NotOffered, NotImplementedError)), always_bfloat16])
def test_without_float32_nothing_is_judged_in_it_and_the_verdict_says_what_it_could_not_see(build, context, capsys):
    (check,) = stages.float32_checks(context(build))
    assert check.verdict == "not judged" and check.evidence.startswith("not judged in float32")
    gates = GateReport("numpy", "bfloat16", "", (GateResult("stages", (Check("local", "pass", ""), check)),))
    print_gates(gates)
    assert gates.verdict == "pass" and ROUNDING in capsys.readouterr().out and ROUNDING in gates.to_dict()["unseen"][0]


def test_a_device_that_breaks_down_in_float32_is_inconclusive(context):
    (check,) = stages.float32_checks(context(only_bfloat16(RuntimeError)))
    assert check.verdict == "inconclusive" and "RuntimeError" in check.evidence


def test_a_refusal_that_names_no_precision_is_not_taken_for_one_of_float32(context):
    def build(precision: str, **options):
        if precision != "bfloat16":
            raise ValueError("operands could not be broadcast together")
        return device.load(precision=precision, **options)

    (check,) = stages.float32_checks(context(build))
    assert check.verdict == "inconclusive" and "broadcast" in check.evidence


def test_a_run_of_another_device_is_wrong_usage_in_float32_too(context):
    made = context()
    other = SimpleNamespace(producer=SimpleNamespace(name="other"))
    made._given.append(SimpleNamespace(folder="run", command="run", manifest=other))
    with pytest.raises(UsageError, match="run was made by other"):
        list(stages.float32_checks(made))


def test_what_parity_itself_refuses_is_not_said_to_be_the_devices(context, monkeypatch):
    def refuses(*_):
        raise UsageError("the disk is full")

    made = context()
    monkeypatch.setattr(made, "compared_exactly", refuses)
    local, _ = stages.float32_checks(made)
    assert (
        local.verdict == "inconclusive" and "the device" not in local.evidence and "the disk is full" in local.evidence
    )
    assert GateReport("numpy", "bfloat16", "", (GateResult("stages", (local,)),)).unseen


def test_gates_that_did_not_run_the_stages_have_not_seen_them():
    assert GateReport("numpy", "bfloat16", "", (GateResult("boundary", (Check("refused", "pass", ""),)),)).unseen
    assert not GateReport("numpy", "float32", "", (GateResult("boundary", (Check("refused", "pass", ""),)),)).unseen


@pytest.fixture(scope="module")
def golden(small_golden):
    """The golden, as far as its constants go."""
    return said(
        small_golden.manifest.model, {side: getattr(small_golden.manifest.model, side).constants for side in SIDES}
    )


SIDES = ("target", "drafter")


def said(model, constants):
    """A dump that says these constants."""
    manifest = SimpleNamespace(
        model=with_constants(model, constants), producer=SimpleNamespace(name="device"), corroborations=()
    )
    dump = SimpleNamespace(manifest=manifest)
    dump.sides = (dump,)
    return dump


def held(golden) -> dict[str, dict]:
    return {side: dict(getattr(golden.manifest.model, side).constants) for side in SIDES}


def off(value) -> Iterator:
    """The value, slightly off."""
    if isinstance(value, bool):
        return [not value, int(value)]
    if isinstance(value, int | float):
        return [value * 1.0001, value + 1, -value]
    return [(*value, 1), value[:-1]] if isinstance(value, tuple) else [f"{value}s"]


def test_both_sides_read_all_of_both_configs_alike(golden, tiny):
    clean = device.load(tiny / "target", tiny / "drafter", 4).describe()
    found = check_constants(golden, said(golden.manifest.model, clean.constants))
    assert found.compared == len(clean.constants["target"]) + len(clean.constants["drafter"]) > 40
    assert not found.findings and not found.unjudged


def test_every_constant_that_is_off_or_unread_is_a_finding(golden):
    passed = []
    for side in SIDES:
        for key, value in held(golden)[side].items():
            for other in off(value):
                constants = held(golden)
                constants[side][key] = other
                found = check_constants(golden, said(golden.manifest.model, constants)).findings
                passed += [] if len(found) == 1 and f"{side}: {key} is " in found[0].message else [(side, key, other)]
            del constants[side][key]
            (found,) = check_constants(golden, said(golden.manifest.model, constants)).findings
            assert f"{side}: {key} is unread" in found.message
    assert not passed


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        ({}, "device does not say what it read"),
        ({"target": {}}, "device does not say what it read"),
    ],
)
def test_a_device_that_does_not_describe_itself_is_not_judged(constants, words, golden):
    found = check_constants(golden, said(golden.manifest.model, constants))
    assert not found.compared and not found.findings and words in found.unjudged[0]


def test_what_a_device_reads_beyond_the_reference_is_said(golden):
    constants = held(golden)
    constants["drafter"]["mlp_bias"] = True
    found = check_constants(golden, said(golden.manifest.model, constants))
    assert not found.findings and "does not read mlp_bias of the drafter" in found.unjudged[0]


@pytest.mark.parametrize("name", [name for name, fault in CATALOGUE.items() if fault.family == "constants"])
def test_a_device_says_what_it_computes_with_not_what_is_in_the_file(name, golden, tiny):
    wrong = planted(name)(tiny / "target", tiny / "drafter", 4).describe()
    (found,) = check_constants(golden, said(golden.manifest.model, wrong.constants)).findings
    assert CATALOGUE[name].id.split("-")[-1][:4] in found.message.replace("_", "-").replace(
        "attention-factor", "concentration"
    )


@pytest.mark.parametrize("value", [float("nan"), object(), {"a": 1}, [[1]], None])
def test_a_constant_that_is_none_is_one_sentence(value, golden):
    from parity.errors import UsageError

    with pytest.raises(UsageError, match=r"constants of config\.json"):
        with_constants(golden.manifest.model, {"target": {"rms_norm_eps": value}})


def test_two_devices_are_compared_with_each_other_alike_in_either_order(golden):
    constants = held(golden)
    del constants["target"]["head_dim"]
    constants["drafter"]["rms_norm_eps"] = 1e-6
    mine, theirs = said(golden.manifest.model, held(golden)), said(golden.manifest.model, constants)
    for sides in ((mine, theirs), (theirs, mine)):
        found = check_constants(golden, SimpleNamespace(sides=sides))
        assert (
            len(found.findings) == 1 and "rms_norm_eps" in found.findings[0].message and "head_dim" in found.unjudged[0]
        )
    both = check_constants(golden, SimpleNamespace(sides=(theirs, theirs)))
    assert not both.findings and not both.unjudged
