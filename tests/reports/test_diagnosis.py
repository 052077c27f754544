"""What a diagnosis calls the cause, in its last line."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from parity.diagnose import Cause, Diagnosis
from parity.diagnose.deduced import HiddenLayers
from parity.diagnose.residuals import Residual
from parity.reports.diagnosis import print_diagnosis

GOLDEN = SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(prompts=[SimpleNamespace(id="one")])))


def last_line(capsys, whole, doubted=""):
    residual = Residual("target.embed", True, 0.01, 7.5, 2.5, None)
    cause = Cause(
        "tap-off", "one tap is another's", None, "target.embed", None, 0.99, residual, residual, 1, whole=whole
    )
    cause = replace(cause, doubted=doubted)
    print_diagnosis(Diagnosis("local", 0, None, causes=(cause,)), GOLDEN)
    return capsys.readouterr().out.splitlines()[-1]


def test_a_cause_that_leaves_more_than_noise_is_said_to_be_near(capsys):
    assert last_line(capsys, whole=True) == "diagnosis: one tap is another's (tap-off)"
    assert last_line(capsys, whole=False) == "diagnosis: near one tap is another's (tap-off), not down to the floor"


def test_what_cannot_be_told_apart_is_a_list_and_the_last_line_says_the_first(capsys):
    residual = Residual("accept.length", True, 0.5, 7.5, 2.5, None)
    cause = Cause("none", "none is counted", None, "accept.length", None, 1.0, residual, residual, 0)
    print_diagnosis(Diagnosis("local", 0, None, causes=(replace(cause, alike=("a", "b", "c", "d")),)), GOLDEN)
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("   nothing that was looked at tells it apart from:")
    assert lines[at + 1 : at + 5] == ["      a", "      b", "      c", "      d"]
    assert lines[-1] == "diagnosis: none is counted (none) or a or b or 2 more, see above"
    print_diagnosis(Diagnosis("local", 0, None, causes=(replace(cause, alike=("a",)),)), GOLDEN)
    said = capsys.readouterr().out
    assert "   nothing that was looked at tells it apart from: a\n" in said and said.endswith("(none) or a\n")


def test_a_cause_that_is_in_doubt_says_so(capsys):
    assert last_line(capsys, whole=True, doubted="it shows at verify.logits as well") == (
        "diagnosis: one tap is another's (tap-off), in doubt"
    )


def test_layers_that_were_led_back_are_said(capsys):
    hidden = HiddenLayers("target.layers.3.out", ("target.layers.2.out", "target.layers.1.out"))
    print_diagnosis(Diagnosis("local", 0, None, hidden=hidden), GOLDEN)
    said = capsys.readouterr().out
    assert "led back: target.layers.2.out, target.layers.1.out, not shown, from target.layers.3.out" in said


def test_weights_that_were_never_loaded_are_told_where_no_hypothesis_fits(capsys):
    rest = Residual("drafter.logits", True, 1.4, 446.0, 100.0, None)
    says = "unrelated to the golden's (cosine 0.02): as from weights that were never loaded"
    print_diagnosis(Diagnosis("local", 0, None, unexplained=rest, signature=("16 of 16 rows", says)), GOLDEN)
    assert capsys.readouterr().out.splitlines()[-1] == f"diagnosis: no hypothesis fits: drafter.logits is {says}"
    print_diagnosis(Diagnosis("local", 0, None, unexplained=rest, signature=("16 of 16 rows",)), GOLDEN)
    assert capsys.readouterr().out.splitlines()[-1] == "diagnosis: no hypothesis fits"
