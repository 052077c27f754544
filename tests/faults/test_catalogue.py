"""The catalogue of planted faults: whole, documented, and without effect on any other device."""

from __future__ import annotations

import inspect
import json
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from parity import device
from parity.device import faults
from parity.device.faults import CATALOGUE, CONDITIONAL, LEFT_OUT
from parity.errors import UsageError
from parity.families import FAMILIES
from parity.fault_choice import PROMPTS
from parity.gates import GATES
from parity.guard import guard
from parity.reports.faults import page
from parity.rounds import generate
from parity.stages import declared
from tests.sample import by_night, cover

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"


def test_ids_are_unique_and_there_are_many():
    ids = [fault.id for family in faults._FAMILIES for fault in family.faults]
    assert len(ids) == len(set(ids)) == len(CATALOGUE) >= 60


@pytest.mark.parametrize("fault", CATALOGUE.values(), ids=lambda fault: fault.id)
def test_every_fault_says_what_it_is_and_where_it_shows(fault):
    assert fault.what and fault.seen and fault.precision in ("bfloat16", "float32")
    assert fault.gate in ("", *GATES)
    layers = {"p-eagle": 4, "eagle-3": 1, "draft-model": 2, "n-gram": 0, "dflash": 2}
    most = max(layers[family] for family in fault.drafters)
    names = declared(8, most, fault.drafters[-1], bool(fault.partial_kv))
    for stage in filter(None, (fault.stage, fault.chained)):
        assert stage in names and any(fnmatchcase(stage, site) for site in fault.sites)
    assert bool(fault.stage) or fault.gate not in ("", "stages")
    assert all(any(fnmatchcase(name, site) for name in names) for site in fault.sites if site)


def test_the_page_is_current():
    assert PAGE.read_text() == page(CATALOGUE.values(), LEFT_OUT, CONDITIONAL.values()), (
        "parity faults list --markdown > docs/faults.md"
    )


def test_a_fault_is_a_factory_by_name_that_takes_what_load_takes():
    assert inspect.signature(faults.tap_off_by_one) == inspect.signature(device.load)
    with pytest.raises(AttributeError, match="no planted fault nonsense"):
        _ = faults.nonsense


def test_a_fault_is_planted_in_its_own_family_of_drafters_alone(tiny):
    options = dict(target=tiny / "target", drafter=tiny / "drafter", k=2)
    with pytest.raises(
        UsageError, match="chain-position-still is a fault of eagle-3 and draft-model drafters, this one is p-eagle"
    ):
        faults.chain_position_still(**options)
    faults.chain_position_still(**options | {"drafter": tiny / "eagle3"})


def test_every_fault_finds_what_it_changes(tiny):
    """One after the other in devices that are not run: a kernel that moved is missed here, not in a night."""
    drafters = {name: tiny / family.checkpoint for name, family in FAMILIES.items()}
    devices = {}
    for fault in CATALOGUE.values():
        for family in fault.drafters:
            case = family, fault.tp, fault.partial_kv, fault.kv_cache, fault.lanes
            if case not in devices:
                special = dict(tp=fault.tp, partial_kv=fault.partial_kv, kv_cache=fault.kv_cache, lanes=fault.lanes)
                devices[case] = device.load(tiny / "target", drafters[family], 4, **special)
            fault.plant(devices[case])


@by_night
def test_no_fault_leaks_into_another_device(tiny, shallow_golden):
    """Faults stay planted in devices that live on and have run; a clean device beside them is as before."""
    options = dict(target=tiny / "target", drafter=tiny / "drafter", k=4)
    ids = shallow_golden.manifest.case.prompts[0].ids[:24]
    clean = device.load(**options)
    before = generate(clean, ids, 4)
    sources = {place: getattr(*place) for place in _kernels()}
    for fault in cover(CATALOGUE.values(), lambda fault: (fault.family,)):
        own = tiny / FAMILIES[fault.drafters[0]].checkpoint
        special = dict(tp=fault.tp, partial_kv=fault.partial_kv, kv_cache=fault.kv_cache, lanes=fault.lanes)
        pipeline = device.load(**options | {"drafter": own}, **special)
        fault.plant(pipeline)
        with suppress(Exception):
            generate(guard(pipeline, fault.id), ids, 3)
    assert {place: getattr(*place) for place in _kernels()} == sources
    assert generate(clean, ids, 4) == generate(device.load(**options), ids, 4) == before


def _kernels():
    """Every function that a module of the device calls by name."""
    import pkgutil
    from importlib import import_module

    for one in pkgutil.walk_packages(device.__path__, "parity.device."):
        module = import_module(one.name)
        yield from ((module, name) for name, value in vars(module).items() if callable(value))


def test_the_default_goldens_prompts_exist(tiny):
    lines = (tiny / "prompts/chat.jsonl").read_text().splitlines()
    assert {name for names in PROMPTS.values() for name in names} <= {json.loads(line)["id"] for line in lines}
