"""Who shares source with whom, what changed behind a golden and what cannot be told, by hand and in words."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from parity.errors import UsageError
from parity.golden import trust
from parity.golden.manifest import Producer
from parity.golden.trust import (
    Changes,
    changes,
    common_source,
    device_modules,
    enumerated,
    one_opinion,
    refuse_less,
    refuse_shared,
    refuse_stale,
    refuse_unnamed,
    shared,
    trusted,
)


def made_by(name: str, *modules: str, **sources: str) -> Producer:
    """Dots of a module are underscores here."""
    told = {module.replace("_", "."): source for module, source in sources.items()}
    return Producer(
        name=name, versions={}, modules=(*modules, *told), source_digest="", threads=1, platform="", sources=told
    )


@pytest.mark.parametrize(
    ("count", "most", "said"),
    [(1, 4, "0"), (4, 4, "0, 1, 2, 3"), (5, 4, "0, 1, 2, 3 and 1 more"), (7, 2, "0, 1 and 5 more"), (0, 4, "")],
)
def test_the_first_few_are_named_and_the_rest_counted(count, most, said):
    assert enumerated([*map(str, range(count))], most) == said
    assert enumerated([*map(str, range(count))]) == said or most != 4


def test_modules_of_both_and_one_file_under_two_names_are_shared():
    golden = made_by("golden", b="1", a="2", c="3")
    assert shared(golden, made_by("device", "b", "a", "z")) == ["a", "b"]
    assert shared(golden, made_by("device", x="2", y="9", z="3")) == [
        "x is a under another name",
        "z is c under another name",
    ]
    assert shared(golden, made_by("device", a="2")) == ["a"]  # told once
    assert shared(golden, made_by("device", x="4")) == shared(golden, made_by("device")) == []


def test_a_golden_cannot_judge_what_it_was_made_by_or_name_no_source():
    refuse_shared(made_by("golden", "a"), made_by("device", "b"))
    with pytest.raises(UsageError) as refused:
        refuse_shared(made_by("golden", "b", "a"), made_by("device", "a", "b"))
    assert str(refused.value) == "golden and device share source (a): such a golden cannot judge it"
    with pytest.raises(UsageError, match=r"^the golden of own does not say which source it was made of: it can be"):
        refuse_shared(made_by("own"), made_by("device"))
    with pytest.raises(UsageError, match=r"^the golden of own does not say which source"):
        refuse_unnamed(made_by("own"))
    assert refuse_unnamed(made_by("own", "a")) is None


def test_a_package_that_holds_others_and_nothing_itself_makes_no_one_opinion():
    one, two = made_by("one", "room", room_a="1"), made_by("two", "room", room_b="2")
    assert common_source(one, two) == [] and one_opinion(one, two) == ""
    says = made_by("two", room_b="2", room="3")
    assert common_source(one, says) == common_source(says, one) == ["room"]
    assert one_opinion(one, says) == "both are made of room"
    alone = made_by("two", "room", roomy_b="2")
    assert common_source(one, alone) == ["room"]  # it holds no other module there
    assert one_opinion(made_by("one", a="1", b="2"), made_by("two", a="1", b="2")) == "both are made of a"


def test_who_names_no_source_confirms_nobody():
    said = "does not say which source it was made of: nothing shows that they are independent"
    assert one_opinion(made_by("one"), made_by("two", "a")) == f"one {said}"
    assert one_opinion(made_by("one", "a"), made_by("two")) == f"two {said}"
    assert one_opinion(made_by("one"), made_by("two")) == f"one {said}"


@pytest.fixture
def sources(monkeypatch, tmp_path):
    """Modules that are found here, each with its digest; all else is nowhere."""
    found: dict[str, str] = {}
    monkeypatch.setattr(trust, "located", lambda name: Path(name) if name in found else None)
    monkeypatch.setattr(trust, "digest", lambda path: found[str(path)])
    return found


def golden(producer: Producer, target="", drafter="", **more) -> SimpleNamespace:
    model = SimpleNamespace(target=SimpleNamespace(path=target), drafter=SimpleNamespace(path=drafter))
    case = SimpleNamespace(sampling="")
    manifest = SimpleNamespace(producer=producer, model=model, kind="golden", case=case)
    return SimpleNamespace(**{"manifest": manifest, "folder": Path("/g"), "keeps": False} | more)


def test_a_module_that_changed_or_went_is_named_and_a_package_that_is_not_here_is_unknown(sources):
    producer = made_by("own", room_a="1", room_b="2", room_c="3", far_a="4", far_b="5")
    sources |= {"room": "", "room.a": "1", "room.b": "x"}
    found = changes(golden(producer, "/t", "/d"))
    assert found.sources == ("the source of room.b", "the source of room.c") == found.all
    absent = "is no checkpoint here: nobody can tell whether the"
    far = "far.a is not installed here: nobody can tell whether the references' source changed"
    assert found.unknown == (f"/t {absent} target changed", f"/d {absent} drafter changed", far)
    sources |= {"room.b": "2", "room.c": "3", "far": "", "far.a": "4", "far.b": "5"}
    found = changes(golden(producer))
    assert found.all == () and len(found.unknown) == 2
    assert (
        changes(golden(made_by("own", "a"))).unknown[-1] == "the golden does not say which source files it was made by"
    )


def test_what_changed_of_a_checkpoint_is_named_side_by_side(sources, tmp_path, monkeypatch):
    (tmp_path / "config.json").touch()
    fields = ("config_digest", "weights_digest", "tokenizer_digest", "chat_template_digest")
    monkeypatch.setattr(trust, "checkpoint", lambda folder: SimpleNamespace(**dict.fromkeys(fields, "now")))
    made = golden(made_by("own", a="1"), str(tmp_path), str(tmp_path))
    made.manifest.model.target.__dict__.update(dict.fromkeys(fields, "now") | {"weights_digest": "then"})
    made.manifest.model.drafter.__dict__.update(dict.fromkeys(fields, "then") | {"config_digest": "now"})
    found = changes(made)
    drafters = [f"the drafter's {what}" for what in ("weights", "tokenizer", "chat template")]
    assert found.checkpoints == ("the target's weights", *drafters) and found.sources == ()
    sources["a"] = "2"
    with pytest.raises(UsageError) as refused:
        refuse_stale(made)
    assert str(refused.value) == (
        f"/g is stale: the target's weights, {', '.join(drafters)} and 1 more changed since it was dumped; make a new "
        "one with `parity dump-golden`"
    )


def test_what_cannot_be_told_of_one_that_is_not_stale_comes_back(monkeypatch):
    monkeypatch.setattr(trust, "changes", lambda golden: Changes((), (), ("who knows",)))
    assert refuse_stale(golden(made_by("own", "a"))) == ("who knows",)


def test_what_may_not_judge_is_refused_by_what_it_is(monkeypatch, noted):
    monkeypatch.setattr(trust, "refuse_stale", lambda golden: ("who knows",))
    view = dict(declared={}, rows={}, parts={})
    run = golden(made_by("own", "a"), **view)
    assert trusted(run).unknown == ("who knows",) and [one.getMessage() for one in noted.records] == ["who knows"]
    run.manifest.case.sampling = "temperature=1"
    assert trusted(run, sampled=True)
    with pytest.raises(UsageError, match=r"^/g samples: `parity run`, `parity diff`"):
        trusted(run, smaller=True)
    run.manifest.case.sampling, run.keeps = "", True
    assert trusted(run, smaller=True)
    with pytest.raises(UsageError, match=r"^/g keeps some of its tensors as less than whole: `parity run`"):
        trusted(run, sampled=True)
    run.manifest.kind, run.manifest.case.sampling = "run", "temperature=1"
    with pytest.raises(UsageError, match=r"^/g is a device's run, not a golden"):
        trusted(run)
    with pytest.raises(UsageError, match=r"^/g keeps some of its tensors as less than whole: `parity diff` takes it"):
        refuse_less(run)
    run.keeps = False
    assert refuse_less(run) is None


class Port:
    """A device that holds something, however deep."""

    def __init__(self, held: object) -> None:
        self.held = held


@pytest.mark.parametrize(
    ("hidden", "seen"),
    [
        (lambda it: it, True),
        (lambda it: [{"part": (it,)}], True),
        (lambda it: SimpleNamespace(inner=[it]), True),
        (lambda it: None, False),
    ],
)
def test_what_a_device_holds_is_among_its_modules(hidden, seen):
    """Whatever name it was imported by, and whatever the device declares; a name that stands here would be read."""
    name = ".".join(("parity", "references", "kv_cache"))
    port = Port(hidden(import_module(name).Quantiser("fp8_e4m3", {})))
    port.held = port.held, port  # a circle ends
    modules = device_modules(port, (), "", SimpleNamespace(modules=()))
    assert (name in modules) is seen


class Hostile(dict):
    """What it holds cannot be asked for by its own methods."""

    def __getattribute__(self, name: str) -> object:
        raise KeyboardInterrupt

    def values(self):
        raise KeyboardInterrupt


def test_what_a_device_holds_is_read_past_the_methods_of_its_class():
    name = ".".join(("parity", "references", "kv_cache"))
    hostile = Hostile(inner=import_module(name).Quantiser("fp8_e4m3", {}))
    assert name in device_modules(Port(hostile), (), "", SimpleNamespace(modules=()))
