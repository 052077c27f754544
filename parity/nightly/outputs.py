"""A night for other programs: JSON lines, JUnit XML, annotations of GitHub. Missing evidence is an error in each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any
from xml.dom.minidom import parseString

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS, WARN, conclude
from parity.files import put
from parity.nightly.folder import NightFolder
from parity.nightly.records import CellResult

RESULTS, JUNIT = "results.jsonl", "junit.xml"
COMPARED = "stages"
"""The test case of both comparisons: the gate of that name; where it was not asked for, the comparisons themselves."""
_UNFIT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML cannot hold, as the escapes that a device prints."""


def write_outputs(folder: NightFolder) -> None:
    """results.jsonl, with the worst that each cell found, and junit.xml, over what is there of the night."""
    lines = "".join(result.model_dump_json() + "\n" for result in folder.worst())
    put(folder.path / RESULTS, lines.encode())
    suites: Any = junit(folder, folder.results())
    put(folder.path / JUNIT, parseString(suites.tostring()).toprettyxml(encoding="utf-8"))


def verdict_of(folder: NightFolder) -> str:
    """The night's: its worst cell's, also of those measured again; a cell without a result is evidence missing."""
    return conclude([*(result.verdict for result in folder.worst()), *(INCONCLUSIVE for _ in folder.missing())])


def junit(folder: NightFolder, results: Sequence[CellResult]) -> JUnitXml:
    """A suite a cell, a test case a gate."""
    night, by_name = folder.night, {result.cell.name: result for result in results}
    whole = JUnitXml(f"parity nightly {night.name}")
    for cell in night.cells:
        suite = TestSuite(cell.name)
        result = by_name.get(cell.name)
        suite.timestamp = result.started if result else night.started
        for case in _all_cases(folder, result) if result else _broken(cell.name, cell.gates, "not run"):
            suite.add_testcase(case)
        whole.add_testsuite(suite)
    return whole


def _all_cases(folder: NightFolder, result: CellResult) -> Iterator[TestCase]:
    """The cell's own, and those of a repeat that ended worse than well."""
    yield from _cases(folder, result)
    for repeat in folder.results_of(result.cell.name)[1:]:
        if repeat.verdict not in (PASS, WARN):
            lines = repeat.error or repeat.first
            name = f"again {repeat.repeat}"
            yield _case(repeat.cell.name, name, repeat.verdict, lines, repeat.reproduce, repeat.seconds)


def _cases(folder: NightFolder, result: CellResult) -> Iterator[TestCase]:
    name = result.cell.name
    if result.error:
        yield from _broken(name, result.cell.gates, result.error, folder.log_tail(name))
        return
    seconds = result.seconds  # of the whole cell; its first case carries it
    for gate in result.gates:
        lines = "\n".join(f"{check['verdict']} {check['name']}: {check['evidence']}" for check in gate["checks"])
        yield _case(name, gate["gate"], gate["verdict"], lines, gate["reproduce"], seconds)
        seconds = 0.0
    if COMPARED not in {gate["gate"] for gate in result.gates}:
        yield _case(
            name, COMPARED, _compared(result), "\n".join([result.first, *result.findings]), result.reproduce, seconds
        )


def _compared(result: CellResult) -> str:
    """What both comparisons say, a gate of that name or not."""
    return conclude(
        [stage["verdict"] for stages in result.stages.values() for stage in stages] + [FAIL] * bool(result.findings)
    )


def _broken(cell: str, gates: Sequence[str], why: str, log: str = "") -> Iterator[TestCase]:
    for gate in gates:
        case = TestCase(gate, cell)
        case.result = [Error(_fit(why), "broken")]
        if log:
            case.system_err = _fit(log)
        yield case


def _case(cell: str, gate: str, verdict: str, lines: str, reproduce: str, seconds: float) -> TestCase:
    case = TestCase(gate, cell, seconds)
    lines = "\n".join(
        sorted(lines.splitlines(), key=lambda line: not line.startswith(verdict))
    )  # the reason is the first line
    said = _fit(f"{lines}\nreproduce: {reproduce}" if reproduce else lines)
    if verdict in (PASS, WARN):
        case.system_out = said
        return case
    kind = {FAIL: Failure, NOT_JUDGED: Skipped}.get(verdict, Error)
    case.result = [kind(said.partition("\n")[0], verdict)]
    case.result[0].text = said
    return case


def _fit(text: str) -> str:
    return _UNFIT.sub("\ufffd", text)


def github_annotations(folder: NightFolder, results: Sequence[CellResult]) -> Iterator[str]:
    """Workflow commands of GitHub: an error for every cell that failed, then a warning for evidence that is missing."""
    red = [result for result in results if result.verdict == FAIL]
    rest = [result for result in results if result.verdict not in (PASS, WARN, FAIL)]
    for result in red:
        cause = f"; {result.diagnosis.words}" if result.diagnosis else ""
        yield _command("error", result.title, f"first divergent: {result.first}{cause}; reproduce: {result.reproduce}")
    for result in rest:
        yield _command("warning", result.title, f"{result.verdict}: {result.error or result.first}")
    for name in folder.missing():
        yield _command("warning", name, "not run")


def _command(kind: str, title: str, message: str) -> str:
    return f"::{kind} title={_escaped(f'parity nightly: {title}', ':,')}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    return "".join(f"%{ord(letter):02X}" if letter in f"%\r\n{more}" else letter for letter in text)
