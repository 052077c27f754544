"""Whatever judges a device hands over what runs the reference once more, which a device that hides a part needs."""

from __future__ import annotations

import ast
from pathlib import Path

PARITY = Path(__file__).parents[2] / "parity"
JUDGES = {"compare": 6, "basis": 4, "GateContext": 13, "CalibrationRequest": 8, "FaultRunRequest": 6}
"""What takes a rerun, and the number of its arguments up to that one."""
SPARED = {
    "compare/between.py": "two devices, of which each would need a reference of its own",
    "diagnose/residuals.py": "runs whose experts are settled before the first trial",
}


def without_a_rerun(source: str) -> list[str]:
    """Calls of what judges, imported from where it is written, that leave the rerun out."""
    if not any(f"{name}(" in source or f"{name} as" in source for name in JUDGES):
        return []  # to parse it takes longer than all else
    tree = ast.parse(source)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    known = {
        name.asname or name.name: JUDGES[name.name]
        for node in imports
        if (node.module or "").startswith("parity.")
        for name in node.names
        if name.name in JUDGES and not (node.module or "").startswith("parity.bench")
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return [
        f"{call.func.id}, line {call.lineno}"
        for call in calls
        if call.func.id in known
        and len(call.args) < known[call.func.id]
        and not any(keyword.arg == "rerun" for keyword in call.keywords)
    ]


def test_a_call_that_leaves_it_out_is_found():
    source = (
        "from parity.compare import compare\ncompare(golden, run, policy)\ncompare(golden, run, policy, rerun=again)\n"
    )
    assert without_a_rerun(source) == ["compare, line 2"]


def test_no_judge_of_a_device_leaves_it_out():
    found = {
        str(path.relative_to(PARITY)): calls
        for path in sorted(PARITY.rglob("*.py"))
        if path.relative_to(PARITY).parts[0] not in ("device", "references", "fixtures")
        and (calls := without_a_rerun(path.read_text()))
    }
    assert found.keys() == SPARED.keys(), found
