"""The lock: whole, hashed, of the versions that constraints.txt pins, and portable; the licences that come with it."""

from __future__ import annotations

import platform
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.supply import licences

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
LOCKED_ON = ("linux", "x86_64", (3, 11))
EXTRAS = ("references", "test", "xla", "nightly", "ray", "lint")


def needed() -> list[Requirement]:
    """What this project and every locked package ask for here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = [*project["dependencies"], *(one for extra in EXTRAS for one in project["optional-dependencies"][extra])]
    asked = [*own, *(one for of in licences.installed().values() for one in of.get_all("Requires-Dist") or ())]
    found = map(Requirement, asked)
    return [one for one in found if not one.marker or one.marker.evaluate({"extra": ""})]


def test_every_package_has_a_hash_and_no_place_is_named():
    blocks = re.split(r"\n(?=[\w.-]+==)", LOCK.split("itself.\n", 1)[1].strip())
    assert len(blocks) > 80
    assert [one.split()[0] for one in blocks if "--hash=sha256:" not in one] == []
    assert "://" not in LOCK and not re.search(r"^-", LOCK, re.MULTILINE)


def test_the_lock_is_of_the_pinned_versions():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    locked = {canonicalize_name(name): version for name, version in licences.locked().items()}
    found = {
        name: (version, locked.get(canonicalize_name(name), version)) for name, version in pins.items()
    }  # others are of other extras
    assert {name: versions for name, versions in found.items() if versions[0] != versions[1]} == {}


def test_nothing_that_is_needed_is_missing_from_the_lock():
    """pip installs it without asking for what packages need."""
    locked = {canonicalize_name(name): version for name, version in licences.locked().items()}
    gpu = re.compile(r"nvidia-|cuda-|triton|torch$")
    missing = [
        str(one)
        for one in needed()
        if not gpu.match(one.name)
        and not one.specifier.contains(locked.get(canonicalize_name(one.name), ""), prereleases=True)
    ]
    assert missing == []


def test_the_page_of_licences_is_current():
    there = {name: of["Version"] for name, of in licences.installed().items() if name != licences.TORCH}
    if others := {name for name, version in licences.locked().items() if there.get(name) != version}:
        some = ", ".join(sorted(others)[:5])
        pytest.skip(f"other versions than the lock's are installed: {some}; `make test` installs the lock's")
    if (here := (sys.platform, platform.machine(), sys.version_info[:2])) != LOCKED_ON:
        pytest.skip(f"the page lists what the lock installs on {LOCKED_ON}; {here} gets other packages by its markers")
    assert (ROOT / "docs/licences.md").read_text() == licences.page()
    assert "not stated" not in licences.page()
