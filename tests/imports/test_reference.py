"""A dump that somebody vouches for is a second opinion: a golden that never judges a device."""

from __future__ import annotations

import numpy as np
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


@pytest.fixture
def changed(truth, tmp_path):
    """The reference's dump with some of its arrays otherwise: `change(key, array)`, None to leave it out."""

    def make(change):
        found = {key: change(key, array) for key, array in np.load(truth[0]).items()}
        np.savez(tmp_path / "changed.npz", **{key: array for key, array in found.items() if array is not None})
        return tmp_path / "changed.npz"

    return make


@pytest.mark.parametrize("precision", ["", '[run]\nprecision = "float32"\n'])
def test_a_truth_in_half_precision_is_none(precision, truth, changed, imported):
    path = changed(lambda key, array: array.astype(np.float16) if key.endswith("drafter.logits") else array)
    truth[1].write_text(precision + truth[1].read_text())
    with pytest.raises(UsageError, match="float16; a golden's truth is float32"):
        imported("files", path, names=truth[1], reference="other==1.2")


def test_tokens_that_are_no_integers(truth, changed, imported):
    path = changed(lambda key, array: array.astype(np.float32) if key.endswith("verify.tokens") else array)
    with pytest.raises(UsageError, match=r"verify\.tokens.*float32.*integers"):
        imported("files", path, names=truth[1], reference="other==1.2")


def test_a_round_without_tokens(truth, changed, imported):
    path = changed(lambda key, array: array[:0] if key.endswith("target.tokens") else array)
    with pytest.raises(UsageError, match=r"lacks target\.tokens of prompt 0, round 0"):
        imported("files", path, names=truth[1], reference="other==1.2")


def test_a_dump_that_was_cut_off_is_no_reference_that_came_to_its_end(truth, changed, imported, short_golden):
    last = len(short_golden.manifest.case.prompts[0].generation.acceptance_length)
    path = changed(lambda key, array: None if f"/r{last:04d}/" in key else array)
    with pytest.raises(UsageError, match="the golden emits more: rounds are missing"):
        imported("files", path, names=truth[1], reference="other==1.2")


def test_it_is_held_against_another_golden_and_confirms_nothing(truth, imported, parity, short_golden, tmp_path):
    """Its files do not say which source made them: an agreement with them could be one opinion given twice."""
    import shutil

    golden = imported("files", truth[0], names=truth[1], reference="other==1.2").folder
    ours = shutil.copytree(short_golden.folder, tmp_path / "ours")
    found = parity("corroborate", ours, golden)
    assert found.code == 3 and "references verdict: uncorroborated" in found.last, found
    assert "other does not say which source it was made of" in found.out
