"""A pytest plugin for both halves: which test reaches which line and what it costs, and goldens that are made once.

-p tests.mutants.recorder    with $MUTANTS_RECORD: write costs.json there; coverage, if it runs, gets a context a test
                             with $MUTANTS_GOLDENS: goldens of the session's fixtures are kept in that folder
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from inspect import signature
from pathlib import Path

import pytest

RECORD, GOLDENS = os.environ.get("MUTANTS_RECORD"), os.environ.get("MUTANTS_GOLDENS")
costs: dict[str, float] = {}
fixtures: dict[str, float] = {}
needs: dict[str, list[str]] = {}
red: set[str] = set()


def _clock() -> float:
    """Seconds of this process and its children: others may use the machine."""
    return sum(os.times()[:4])


def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep goldens: a mutant of the comparison needs no other one, and a new one takes ten seconds."""
    home = next(
        (module for module in list(sys.modules.values()) if hasattr(module, "make_golden") and hasattr(module, "TINY")),
        None,
    )
    if GOLDENS and home:
        make = home.make_golden
        home.make_golden = lambda out, *given, **asked: _kept(make, out, *given, **asked)


def _kept(make, out: Path, *given, **asked):
    from parity.golden.store import Dump

    arguments = signature(make).bind(out, *given, **asked).arguments
    said = {name: _told(value) for name, value in arguments.items() if name != "out"}
    kept = Path(GOLDENS) / hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
    if not kept.exists():
        return make(out, *given, **asked) if not RECORD else _keep(_untraced(make, out, *given, **asked), kept)
    shutil.copytree(kept, out)
    return Dump(out)


def _told(value) -> str:
    """What an argument says: a file's content, as folders of tests change from session to session."""
    return value.read_text() if isinstance(value, Path) and value.is_file() else repr(value)


def _untraced(make, *given, **asked):
    """A golden is copied against a mutant: lines that only its making reaches are no test's, and tracing is slow."""
    import coverage

    running = coverage.Coverage.current()
    if running is None:
        return make(*given, **asked)
    running.stop()
    try:
        return make(*given, **asked)
    finally:
        running._warn_preimported_source = False  # it was imported under tracing; looking for it trips over torch
        running.start()


def _keep(made, kept: Path):
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(made.folder, kept)
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """A context of coverage for each test, its fixtures included."""
    if not RECORD:
        return (yield)
    import coverage

    running = coverage.Coverage.current()
    if running is not None:
        running.switch_context(item.nodeid)
    begun, before = _clock(), sum(fixtures.values())
    try:
        return (yield)
    finally:
        costs[item.nodeid] = max(0.0, _clock() - begun - (sum(fixtures.values()) - before))
        needs[item.nodeid] = [name for name in item.fixturenames if name in fixtures]
        if running is not None:
            running.switch_context("")


def pytest_runtest_logreport(report) -> None:
    """Which tests fail without a mutant."""
    if report.failed:
        red.add(report.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """What fixtures of a session or a module cost: every selection of tests pays for them once."""
    begun, before = _clock(), sum(fixtures.values())
    try:
        return (yield)
    finally:
        if RECORD and fixturedef.scope in ("session", "module"):
            fixtures[fixturedef.argname] = (
                fixtures.get(fixturedef.argname, 0) + _clock() - begun - (sum(fixtures.values()) - before)
            )


def pytest_sessionfinish(session) -> None:
    """Add what was measured to what an earlier recording left."""
    if not RECORD:
        return
    path = Path(RECORD) / "costs.json"
    known = json.loads(path.read_text()) if path.exists() else {"tests": {}, "fixtures": {}, "needs": {}}
    known["tests"] |= {test: cost for test, cost in costs.items() if test not in red}
    known["red"] = sorted(red.union(known.get("red", ())))
    known["fixtures"] |= fixtures
    known["needs"] |= needs
    path.write_text(json.dumps(known))
