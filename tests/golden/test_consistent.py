"""A manifest is consistent in itself and with its tensors, or unreadable: also where its digest was taken anew."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest

from parity.errors import UsageError
from parity.golden.case import Generation
from parity.golden.consistent import _generation, _starts
from parity.golden.consistent_tensors import _drafted
from parity.golden.digests import UNSEALED, own_digest
from parity.golden.manifest import FILE
from parity.golden.prompt_rounds import PromptRounds
from parity.golden.store import Dump, seal
from tests.golden.edits import edited, rewrite
from tests.meta.dumps import clean, write
from tests.meta.worlds import Size


def generation(raw, prompt=0):
    return raw["case"]["prompts"][prompt]["generation"]


def row(raw, key="p000/r0001/verify.tokens", variant="float32"):
    return next(one for one in raw["tensors"] if (one["key"], one["variant"]) == (key, variant))


def shorter_round(raw):
    """A round fewer, in every part of the generation."""
    told = generation(raw)
    cut = told["acceptance_length"].pop()
    told["accepted_drafts"].pop()
    del told["emitted"][-cut:]
    told["finish"] = "eos"


def moved_token(raw):
    """A token from one round to the next, all sums kept."""
    told = generation(raw, 1)
    told["acceptance_length"][:2] = [told["acceptance_length"][0] - 1, told["acceptance_length"][1] + 1]
    told["accepted_drafts"][:2] = [told["accepted_drafts"][0] - 1, told["accepted_drafts"][1] + 1]


def without_prompt(raw):
    """A prompt that only the tensors remember."""
    raw["case"]["prompts"].pop()


def exchanged_prompts(raw):
    raw["case"]["prompts"].reverse()


def more_rounds(raw):
    told = generation(raw)
    told["acceptance_length"] += [1] * 200_000
    told["accepted_drafts"] += [0] * 200_000
    told["emitted"] += [7] * 200_000
    raw["case"]["max_new_tokens"] += 200_000


def every_budget(raw):
    raw["case"]["max_new_tokens"] += 1


def continued_rows(raw):
    row(raw, "p000/r0001/kv.target.0.k")["start"] = 400


EDITS = {
    "an acceptance length": lambda raw: generation(raw)["acceptance_length"].__setitem__(0, 4),
    "a round left out": shorter_round,
    "a token in another round": moved_token,
    "an emitted token": lambda raw: generation(raw)["emitted"].__setitem__(3, 9),
    "the first emitted token": lambda raw: generation(raw)["emitted"].__setitem__(0, 9),
    "the first emitted token, a larger one": lambda raw: generation(raw)["emitted"].__setitem__(0, 990),
    "an accepted draft in the last round": lambda raw: generation(raw)["accepted_drafts"].__setitem__(-1, 1),
    "accepted drafts beyond K": lambda raw: generation(raw)["accepted_drafts"].__setitem__(0, 5),
    "how a prompt ended": lambda raw: generation(raw)["emitted"].pop(),
    "a prompt left out": without_prompt,
    "prompts exchanged": exchanged_prompts,
    "no prompt": lambda raw: raw["case"].update(prompts=[]),
    "a prompt's token": lambda raw: raw["case"]["prompts"][0]["ids"].__setitem__(5, 3),
    "a prompt's length": lambda raw: raw["case"]["prompts"][0]["ids"].pop(),
    "200,000 rounds": more_rounds,
    "the budget": every_budget,
    "K": lambda raw: raw["case"].update(k=6),
    "mode": lambda raw: raw["case"].update(mode="chained"),
    "precision": lambda raw: raw["case"].update(precision="bfloat16"),
    "kind": lambda raw: raw.update(kind="run"),
    "a stage twice": lambda raw: raw["stages"].append(raw["stages"][0]),
    "a stage that has tensors left out": lambda raw: raw["stages"].remove("verify.logits"),
    "a row twice": lambda raw: raw["tensors"].append(raw["tensors"][0]),
    "a row of another prompt": lambda raw: row(raw).update(key="p002/r0001/verify.tokens"),
    "a row of another round": lambda raw: row(raw).update(key="p000/r0004/verify.tokens"),
    "a floor without one round": lambda raw: raw["tensors"].remove(
        row(raw, "p000/r0001/verify.logits", "bfloat16.local")
    ),
    "a floor of a round without its truth": lambda raw: raw["tensors"].remove(row(raw, "p001/r0002/verify.logits")),
    "a key of two parts": lambda raw: row(raw).update(key="p000/verify.tokens"),
    "a key with a sign": lambda raw: row(raw).update(key="p-01/r0001/verify.tokens"),
    "an empty shape": lambda raw: row(raw).update(shape=[]),
    "a shape of other axes": lambda raw: row(raw).update(shape=[5, 1]),
    "another axis": lambda raw: row(raw).update(axes=["K"]),
    "70 axes": lambda raw: row(raw).update(shape=[1] * 70, axes=["S"] * 70),
    "a negative size": lambda raw: row(raw).update(shape=[-5]),
    "fewer rows": lambda raw: row(raw).update(shape=[4]),
    "rows that no round before has": continued_rows,
    "rows before the first round": lambda raw: row(raw, "p000/r0000/kv.target.0.k").update(start=3),
    "counts that are true and false": lambda raw: [
        one["generation"].update(
            accepted_drafts=[bool(count) if count < 2 else count for count in one["generation"]["accepted_drafts"]]
        )
        for one in raw["case"]["prompts"]
    ],
    "a count in quotes": lambda raw: generation(raw)["acceptance_length"].__setitem__(
        0, str(generation(raw)["acceptance_length"][0])
    ),
    "a million layers": lambda raw: raw["model"].update(num_layers=1_000_000),
    "another family of drafters": lambda raw: raw["model"].update(family="eagle-3"),
    "a draft vocabulary of another width": lambda raw: raw["model"]["draft_vocabulary"].pop(),
    "a draft vocabulary that lacks what is drafted": lambda raw: raw["model"].update(
        draft_vocabulary=list(range(2000, 2992))
    ),
    "a token of two columns": lambda raw: raw["model"]["draft_vocabulary"].__setitem__(
        1, raw["model"]["draft_vocabulary"][0]
    ),
    "no layer": lambda raw: raw["model"].update(num_layers=0),
    "another unit of K": lambda raw: raw["case"].update(k=10**30),
    "a rank that is far": lambda raw: row(raw).update(rank=10**9),
    "an escape in a name": lambda raw: raw["producer"].update(name="\x1b[2Jclean"),
    "a verdict in a name": lambda raw: raw["case"]["prompts"][0].update(id="a\nchained verdict: pass"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_manifest_that_contradicts_itself_is_unreadable(edit, shallow_golden, tmp_path):
    folder = edited(shallow_golden.folder, tmp_path / "g", edit)
    with pytest.raises(UsageError) as refused:
        Dump(folder)
    assert str(tmp_path) in str(refused.value) and "\n" not in str(refused.value) and len(str(refused.value)) < 600


@pytest.mark.parametrize(
    ("stage", "change", "words"),
    [
        ("verify.tokens", lambda ids: ids[:3], "has 3 rows, 5 are due"),
        ("verify.tokens", lambda ids: ids[:, None], r"shape \[5, 1\]"),
        ("accept.emitted", lambda ids: np.full(len(ids), np.nan, np.float32), "integers in one axis are due"),
    ],
)
def test_ids_of_another_size_or_kind_are_refused_in_a_sentence(stage, change, words, tmp_path):
    pair = clean(Size(prompts=(40,)))
    truth = pair.golden["float32"][0]
    truth[1, stage] = change(truth[1, stage])
    with pytest.raises(UsageError, match=words):
        write(pair, tmp_path)


@pytest.mark.parametrize("edit", [lambda raw: raw.update(created="later"), lambda raw: raw["case"].update(roundings=3)])
def test_an_edit_by_hand_is_seen_whatever_it_says(edit, shallow_golden, tmp_path):
    with pytest.raises(UsageError, match="digest does not match"):
        Dump(edited(shallow_golden.folder, tmp_path / "g", edit, seal=False))


def test_a_dump_that_does_not_say_in_which_format_it_is_has_none(shallow_golden, tmp_path):
    with pytest.raises(UsageError, match="does not say which; `parity seal"):
        Dump(edited(shallow_golden.folder, tmp_path / "g", lambda raw: raw.pop("schema_version")))


def test_a_dump_of_an_older_parity_says_what_to_do_and_is_sealed(shallow_golden, tmp_path):
    def older(raw):
        raw.update(schema_version=1)
        del raw["digest"]

    folder = edited(shallow_golden.folder, tmp_path / "g", older, seal=False)
    with pytest.raises(UsageError, match="parity seal"):
        Dump(folder)
    assert seal(folder).manifest.tensors == Dump(folder).manifest.tensors == shallow_golden.manifest.tensors


def test_what_contradicts_itself_is_not_sealed(shallow_golden, tmp_path):
    folder = edited(shallow_golden.folder, tmp_path / "g", shorter_round, seal=False)
    before = (folder / FILE).read_bytes()
    with pytest.raises(UsageError, match="contradicts itself"):
        seal(folder)
    assert (folder / FILE).read_bytes() == before


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "folder", "circle"])
def test_a_manifest_that_is_no_file(name, tmp_path):
    manifest = tmp_path / FILE
    links = {"/dev/zero": name, "circle": manifest.name}
    make = {"pipe": lambda: os.mkfifo(manifest), "folder": manifest.mkdir}
    manifest.symlink_to(links[name]) if name in links else make[name]()
    with pytest.raises(UsageError, match=r"no regular file|leads out|cannot be read") as refused:
        Dump(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "..", "", "a\\b", "linked.safetensors"])
def test_a_shard_outside_the_folder_is_not_read(name, shallow_golden, tmp_path):
    folder = edited(shallow_golden.folder, tmp_path / "g", lambda raw: None)
    source = folder / "p000.float32.safetensors"
    source.rename(tmp_path / "outside.safetensors")
    (folder / "linked.safetensors").symlink_to(tmp_path / "outside.safetensors")
    shard = lambda raw: [one.update(shard=name) for one in raw["tensors"] if one["shard"] == source.name]  # noqa: E731
    rewrite(folder, shard)
    with pytest.raises(UsageError, match="outside"):
        Dump(folder)


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "folder", "circle"])
def test_a_shard_that_is_no_file(name, shallow_golden, tmp_path):
    folder = edited(shallow_golden.folder, tmp_path / "g", lambda raw: None)
    shard = folder / "p000.float32.safetensors"
    shard.unlink()
    links = {"/dev/zero": name, "circle": shard.name}
    shard.symlink_to(links[name]) if name in links else {"pipe": lambda: os.mkfifo(shard), "folder": shard.mkdir}[
        name
    ]()
    with pytest.raises(UsageError, match=r"no regular file|leads out|Too many levels of symbolic links"):
        Dump(folder)


@pytest.mark.parametrize("find", [b'"kind":"golden"', b'"start":0', b'"max_new_tokens":'], ids=["top", "row", "case"])
def test_a_key_that_is_there_twice_is_refused_with_any_digest(find, shallow_golden, tmp_path):
    folder = edited(shallow_golden.folder, tmp_path / "golden", lambda raw: None)
    data = (folder / FILE).read_bytes().replace(b'": ', b'":')
    twice = data.replace(find, b'"' + find.split(b'"')[1] + b'" :0,' + find, 1)
    assert twice != data
    last = twice.rindex(b'"digest"')
    resealed = twice[:last] + b'"digest": "' + UNSEALED.encode() + b'"}'
    (folder / FILE).write_bytes(resealed.replace(UNSEALED.encode(), own_digest(resealed).encode()))
    with pytest.raises(UsageError, match="there twice"):
        Dump(folder)


@pytest.mark.parametrize(
    ("lengths", "accepted", "emitted", "golden", "wrong"),
    [
        ((3, 1), (2, 0), 5, True, ""),
        ((3, 1), (2, 1), 5, True, ""),
        ((3, 3), (2, 2), 7, True, ""),
        ((5, 1), (4, 0), 7, False, ""),
        ((3, 1), (2, 0), 6, True, "emitted 6 tokens, its rounds 5"),
        ((3, 0), (2, 0), 4, False, "emitted 0 tokens in round 2 with 0 of 2 drafts accepted"),
        ((3, 2), (2, 3), 6, False, "emitted 2 tokens in round 2 with 3 of 2 drafts accepted"),
        ((5, 1), (3, 0), 7, False, "emitted 5 tokens in round 1 with 3 of 2 drafts accepted"),
        ((4, 1), (2, 0), 6, True, "emitted 4 tokens in round 1 with 2 of 2 drafts accepted"),
        ((1, 4), (0, 2), 6, True, "emitted 4 tokens in round 2 with 2 of 2 drafts accepted"),
        ((3, 1), (1, 0), 5, True, "emitted 3 tokens in round 1 with 1 of 2 drafts accepted"),
    ],
)
def test_each_round_emits_its_accepted_drafts_and_one_token(lengths, accepted, emitted, golden, wrong):
    """K = 2, but for the run that is allowed more."""
    told = Generation(emitted=(7,) * emitted, acceptance_length=lengths, accepted_drafts=accepted, finish="eos")
    case = SimpleNamespace(drafts=lambda round_: 4 if lengths[0] == 5 and not wrong else 2, max_new_tokens=9)
    said = list(_generation(told, case, golden))
    assert wrong in said if wrong else not said


@pytest.mark.parametrize(("start", "said"), [(0, False), (5, False), (6, True)])
def test_rows_continue_what_the_round_before_has(start, said):
    """Rounds of two rows, the first one's behind three others."""
    rows = [
        SimpleNamespace(place=(0, round_, "kv.target"), variant="float32", rank=0, start=at, shape=(2, 8), key="key")
        for round_, at in enumerate((3, start), 4)
    ]
    rows.append(SimpleNamespace(**vars(rows[0]) | {"place": (0, 3, "kv.target"), "start": 1}))
    rows.append(SimpleNamespace(**vars(rows[0]) | {"place": (0, 2, "kv.target"), "start": 0}))
    lacking = [one for one in _starts(rows) if f"continues {start} rows" in one]
    assert bool(lacking) is said


@pytest.mark.parametrize(
    ("family", "behind", "wrong"),
    [
        ("p-eagle", [7, 7, 7], []),
        ("p-eagle", [7, 8, 7], ["rows of round 1 carry [7, 8, 7]; of p-eagle [7, 7, 7] are due"]),
        ("eagle-3", [21, 22, 23], []),
        ("eagle-3", [21, 22, 7], ["rows of round 1 carry [21, 22, 7]; of eagle-3 [21, 22, 23] are due"]),
    ],
)
def test_rows_behind_the_committed_ones_are_what_the_family_has_there(family, behind, wrong):
    told = Generation(emitted=(5, 6), acceptance_length=(1,), accepted_drafts=(0,), finish="length")
    model = SimpleNamespace(family=family, draft_vocabulary=None)
    manifest = SimpleNamespace(model=model, case=SimpleNamespace(drafts=lambda round_: 4))
    rounds = PromptRounds.of(SimpleNamespace(ids=(1, 2, 3)), told, manifest)
    held = {"drafter.input_ids": [5, *behind], "drafter.draft_tokens": [21, 22, 23, 24]}
    assert list(_drafted(rounds, lambda _, stage: np.array(held[stage]))) == wrong
