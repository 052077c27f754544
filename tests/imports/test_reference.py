"""A dump that somebody vouches for is a second opinion: a golden that never judges a device."""

from __future__ import annotations

import pytest

from parity.errors import UsageError


@pytest.fixture
def truth(short_golden, parity, tmp_path):
    """The golden's own float32 tensors as somebody else's dump of plain files."""
    out = tmp_path / "truth.npz"
    assert parity("export", short_golden.folder, out).code == 0
    names = tmp_path / "truth.toml"
    rows = "[[row]]\nname = 'float32/p(?P<prompt>\\d+)/r(?P<round>\\d+)/(?P<stage>.+)'\nstage = \"{stage}\"\n"
    names.write_text(rows + "[[row]]\nname = 'bfloat16.*'\nignore = \"the floors\"\n")
    return out, names


def test_a_reference_keeps_what_it_emitted_and_who_it_is(truth, imported, short_golden):
    made = imported("files", truth[0], names=truth[1], reference="other==1.2").manifest
    assert (made.kind, made.producer.name, made.producer.modules) == ("golden", "other", ())
    assert made.producer.versions == {"imported from": "files", "other": "1.2"}
    assert made.case.prompts == short_golden.manifest.case.prompts


def test_it_does_not_judge_a_device(truth, imported, parity, short_run):
    golden = imported("files", truth[0], names=truth[1], reference="other==1.2").folder
    for command in (("diff", short_run.folder), ("diff",), ("run",)):
        found = parity(*command, "--golden", golden)
        assert found.code == 2 and "not judge a device" in found.err, command


def test_nothing_here_can_dump_it_again(truth, imported, parity):
    golden = imported("files", truth[0], names=truth[1], reference="other==1.2").folder
    found = parity("verify-golden", golden)
    assert found.code == 2 and "imported" in found.err


def test_a_bfloat16_dump_is_no_truth(short_run, imported, parity, tmp_path):
    out, names = tmp_path / "run.npz", tmp_path / "map.toml"
    parity("export", short_run.folder, out)
    row = "[[row]]\nname = 'p(?P<prompt>\\d+)/r(?P<round>\\d+)/(?P<stage>.+)'\nstage = \"{stage}\"\n"
    names.write_text('[run]\nprecision = "bfloat16"\n' + row)
    with pytest.raises(UsageError, match="in bfloat16; a golden's truth is float32"):
        imported("files", out, names=names, reference="other==1.2")


@pytest.mark.parametrize("stage", ["target.tokens", "accept.emitted", "drafter.draft_tokens"])
def test_without_its_tokens_nobody_knows_what_it_emitted(stage, truth, imported):
    truth[1].write_text(f"[[row]]\nname = '.+/{stage}'\nignore = \"left out\"\n" + truth[1].read_text())
    with pytest.raises(UsageError, match=f"lacks {stage} of prompt 0, round"):
        imported("files", truth[0], names=truth[1], reference="other==1.2")


@pytest.mark.parametrize("reference", ["other", "==1", "other=="])
def test_a_reference_has_a_name_and_a_version(reference, truth, imported):
    with pytest.raises(UsageError, match="NAME==VERSION"):
        imported("files", truth[0], names=truth[1], reference=reference)
