"""`parity check-device`: right devices keep every line, a broken one is named by the line that it breaks."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import parity
from parity.contract import LINES
from parity.device.pipeline import Pipeline
from parity.seam import Shown
from parity.skeleton import LIBRARIES, write_skeleton

PAGE = Path(__file__).parents[2] / "docs/adding-a-device.md"


@pytest.fixture
def port(tmp_path, monkeypatch):
    """The module of a new skeleton, which breaks nothing."""
    write_skeleton("new_port", "numpy", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("new_port")
    del sys.modules["new_port"]


@pytest.mark.parametrize(
    ("device", "unmet"),
    [
        ("numpy", set()),
        ("docs.ports.fused_device:load", {"describe: constants", "commit: length"}),
        ("docs.ports.fused_loop:load", {"describe: constants", "commit: length", "verify: returned", "verbs: raising"}),
        ("numpy,show=tokens", {"tap: finite", "commit: caches"}),
    ],
)
def test_a_device_that_keeps_the_contract_passes(device, unmet):
    checked = parity.check_device(device, k=2)
    states = {line: state for line, state, _ in checked.lines}
    assert checked.verdict == "pass" and checked.exit_code == 0, checked
    assert {line for line in unmet if states[line] == "not exercised"} == unmet
    assert all(said for _, state, said in checked.lines if state == "not exercised")
    if device == "numpy":
        assert set(states.values()) == {"ok"}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_skeleton_keeps_the_contract_and_nothing_is_overwritten(library, tmp_path, parity, monkeypatch):
    if library != "numpy":
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    name = f"skeleton_{library}"
    assert parity("new-device", name, f"--{library}").code == 0
    before = (tmp_path / f"{name}.py").read_bytes()
    compile((tmp_path / f"test_{name}.py").read_text(), name, "exec")
    again = parity("new-device", name)
    assert again.code == 2 and "exists already" in again.err and (tmp_path / f"{name}.py").read_bytes() == before
    monkeypatch.syspath_prepend(tmp_path)
    ended = parity("check-device", "--device", f"{name}:load", "--precision", "float32", "-k", "2")
    assert ended.code == 0 and ended.last == "contract verdict: pass", ended.out
    assert "not exercised  describe: constants" in ended.out


@pytest.mark.parametrize("name", ["my-port", "2nd", "class", "", "a/b", "é"])
def test_a_name_of_no_module_is_refused(name, tmp_path):
    with pytest.raises(parity.UsageError, match="names no Python module"):
        write_skeleton(name, "numpy", tmp_path)


@pytest.mark.parametrize("name", ["numpy", "torch", "json", "parity", "sys", "this"])
def test_a_name_that_another_module_has_is_refused(name, tmp_path):
    with pytest.raises(parity.UsageError, match=f"{name} is another module's name"):
        write_skeleton(name, "numpy", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_package_in_the_folder_would_hide_the_new_module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "hidden_port").mkdir()
    (tmp_path / "hidden_port" / "__init__.py").touch()
    with pytest.raises(parity.UsageError, match="another module's name"):
        write_skeleton("hidden_port", "numpy", tmp_path)


def of(verb):
    """A breakage around one verb: `change(device, original, *arguments)`."""
    return lambda change: (verb, change)


def described(**changes):
    return "describe", lambda self, original: replace(original(self), **changes)


def tapped(verb, change):
    """A verb that hands its tensors over changed."""

    def changed(self, original, *arguments):
        *given, tap = arguments
        return original(self, *given, lambda stage, value: change(self, tap, stage, value))

    return verb, changed


def at(name, change):
    return lambda self, tap, stage, value: change(tap, stage, value) if stage == name else tap(stage, value)


def torch_like(tap, stage, value):
    tap(stage, list(value))
    return value


def ignores_budget(self, original, drafts, tokens, tap):
    self.left = 1000
    return original(self, drafts, tokens, tap)


def keeps_rejected(self, original, drafts, tokens, tap):
    held = self.held
    emitted = original(self, drafts, tokens, lambda stage, value: value)
    self.held = held + len(tokens)
    self.show_caches(tap)
    tap("accept.length", np.array([len(emitted)]))
    return emitted


def ignores_eos(self, original, drafts, tokens, tap):
    kept, self.target = self.target, self.target | {"eos_token_id": []}
    emitted = original(self, drafts, tokens, tap)
    self.target = kept
    return emitted


def swallows(self, original, tap):
    try:
        return original(self, tap)
    except Exception:
        return np.zeros(self.k, int)


def stale(self, original, ids, budget, tap):
    self.sequences = getattr(self, "sequences", 0) + 1
    return original(self, ids, budget, lambda stage, value: tap(stage, value + 0.5 * self.sequences
                    if stage == "target.logits" else value))  # fmt: skip


def misses(tap, stage, value):
    return value


def without_bonus(self, original, drafts, tokens, tap):
    return original(self, drafts, tokens, lambda stage, value: tap(stage, value - (stage == "accept.length")))


def owes_a_draft(self, original, drafts, tokens, tap):
    """Rows of the drafter's cache are read as far as they should be there, and a plain round's never were."""
    if getattr(tap, "unwatched", False) and not len(drafts):
        raise IndexError("index 9 is out of bounds for axis 0 with size 9")
    return original(self, drafts, tokens, tap)


BROKEN = {
    "describe: case": described(k=7),
    "describe: layers": described(num_drafter_layers=1),
    "describe: eos": described(eos=()),
    "describe: fields": described(eos=1265),
    "describe: modules": described(modules=("no.such.module",)),
    "describe: shown": described(shown=(Shown("target.layer.*.out"),)),
    "describe: forcible": described(forcible=("logit",)),
    "describe: constants": described(constants={"target": {"rms_norm_eps": 1e-5}}),
    "tap: type": tapped("verify", at("verify.logits", torch_like)),
    "tap: name": tapped("draft", at("drafter.logits", lambda tap, stage, value: tap("drafter.logit", value))),
    "tap: dtype": tapped(
        "draft",
        at("drafter.logits", lambda tap, stage, value: tap(stage, value.astype(np.float16)).astype(value.dtype)),
    ),
    "tap: shape": tapped("prefill", at("target.logits", lambda tap, stage, value: tap(stage, value[None])[0])),
    "tap: rows": tapped(
        "draft", at("drafter.taps", lambda tap, stage, value: tap(stage, np.repeat(value, 2, axis=0))[::2])
    ),
    "tap: finite": tapped("verify", at("verify.logits", lambda tap, stage, value: tap(stage, value * np.nan))),
    "tap: complete": tapped("verify", at("verify.logits", misses)),
    "tap: returned": tapped("draft", at("drafter.logits", lambda tap, stage, value: (tap(stage, value), value)[1])),
    "prefill: returned": of("prefill")(lambda self, original, *rest: [original(self, *rest)]),
    "prefill: anew": of("prefill")(stale),
    "draft: returned": of("draft")(lambda self, original, tap: original(self, tap)[:-1]),
    "verify: returned": of("verify")(
        lambda self, original, drafts, tap: np.resize(original(self, drafts, tap), self.k + 1)
    ),
    "commit: returned": of("commit")(lambda self, original, *rest: original(self, *rest)[:-1]),
    "commit: eos": of("commit")(ignores_eos),
    "commit: budget": of("commit")(ignores_budget),
    "commit: length": of("commit")(without_bonus),
    "commit: caches": of("commit")(keeps_rejected),
    "verbs: plain": of("commit")(owes_a_draft),
    "verbs: raising": of("draft")(swallows),
}


def test_every_line_of_the_verbs_has_a_device_that_breaks_it():
    """But for a K that changes, which the skeleton does not take: the next test."""
    assert set(BROKEN) == {line for line in LINES if not line.startswith(("speculate", "factory", "draft: k"))}


def test_a_device_that_drafts_as_many_as_ever_is_named_by_its_line(monkeypatch):
    original = Pipeline.draft
    monkeypatch.setattr(Pipeline, "draft", lambda self, tap, k=None: original(self, tap))
    assert parity.check_device("numpy", k=3).broken[:1] == ("draft: k",)


def test_another_byte_order_is_another_dtype(port, monkeypatch):
    _, change = tapped("commit", at("accept.length", lambda tap, stage, value: tap(stage, value.astype(">i8"))))
    original = port.Device.commit
    monkeypatch.setattr(port.Device, "commit", lambda self, *arguments: change(self, original, *arguments))
    checked = parity.check_device("new_port:load", k=2)
    assert checked.broken == ("tap: dtype",) and "int64 in another byte order" in str(checked.lines)


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_device_is_named_by_its_line(line, port, monkeypatch):
    verb, change = BROKEN[line]
    original = getattr(port.Device, verb)
    monkeypatch.setattr(port.Device, verb, lambda self, *arguments: change(self, original, *arguments))
    checked = parity.check_device("new_port:load", k=3)
    assert checked.exit_code == 1 and checked.broken[0] == line, checked
    said = next(said for name, _, said in checked.lines if name == line)
    assert said and all(len(one) < 300 for one in said)


def test_a_verb_that_does_not_undo_itself_is_named(port, monkeypatch):
    monkeypatch.setattr(port, "transactional", lambda device, state: device)
    original = port.Device.draft

    def draft(self, tap):
        self.fresh = [each + 1 for each in self.fresh]
        drafts = original(self, tap)
        self.fresh = [each - 1 for each in self.fresh]
        return drafts

    monkeypatch.setattr(port.Device, "draft", draft)
    checked = parity.check_device("new_port:load", k=3)
    assert checked.broken == ("verbs: raising",), checked


@pytest.mark.parametrize("heeds", [True, False])
def test_rows_that_come_pass_by_pass_are_whole(heeds, port, monkeypatch):
    """A chain of drafter steps: each step hands over one row, and continues with what comes back."""
    original = port.Device.draft

    def draft(self, tap):
        ids = original(self, tap)
        steps = [tap.rows("drafter.draft_tokens", ids[[step]], step, self.k) for step in range(self.k)]
        return np.concatenate(steps) if heeds else ids

    monkeypatch.setattr(port, "SHOWN", (*port.SHOWN, "drafter.draft_tokens"))
    monkeypatch.setattr(port.Device, "draft", draft)
    assert parity.check_device("new_port:load", k=3).broken == (() if heeds else ("tap: returned",))


def test_a_verb_that_raises_is_inconclusive_and_says_where(port, monkeypatch, parity):
    def draft(self, tap):
        raise NotImplementedError("no drafter yet")

    monkeypatch.setattr(port.Device, "draft", draft)
    ended = parity("check-device", "--device", "new_port:load")
    assert ended.code == 3 and "failed in draft" in ended.last and "no drafter yet" in ended.last, ended.out
    assert "not exercised  commit: returned" in ended.out and ended.last.startswith("contract verdict: inconclusive")


def test_what_has_no_verbs_is_named(port, monkeypatch):
    monkeypatch.setattr(port, "transactional", lambda device, state: object())
    assert parity.check_device("new_port:load").broken == ("factory: verbs",)


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("speculate: rounds", lambda told, place, drafts, emitted, tokens: told(drafts or [1], emitted, tokens)),
        ("speculate: returned", lambda told, place, drafts, emitted, tokens: told(drafts, [*emitted[:-1], 1], tokens)),
        (
            "speculate: rounds",
            lambda told, place, drafts, emitted, tokens: told(drafts, emitted, tokens and tokens[1:]),
        ),
    ],
)
def test_a_loop_that_tells_its_rounds_wrong_is_named(line, change, monkeypatch):
    from docs.ports import fused_loop

    original = fused_loop.FusedLoop.speculate

    def speculate(self, ids, budget, tap, on_round):
        def told(drafts, emitted, tokens=None):
            return change(on_round, 0, list(drafts), list(emitted), tokens if tokens is None else list(tokens))

        return original(self, ids, budget, tap, told)

    monkeypatch.setattr(fused_loop.FusedLoop, "speculate", speculate)
    checked = parity.check_device("docs.ports.fused_loop:load", k=2)
    assert line in checked.broken, checked


def test_the_page_has_every_line_of_the_contract():
    page = PAGE.read_text()
    assert [line.name for line in LINES.values() if f"| {line.name} | {line.says} |" not in page] == []


def test_needs_no_torch_and_no_golden(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert parity.check_device("numpy,show=tokens", k=1).verdict == "pass"
