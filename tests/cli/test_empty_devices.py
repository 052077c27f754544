"""The Python API takes no empty name of a device, as an unset variable in a script leaves: one sentence, no default."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from parity import api
from parity.errors import UsageError
from parity.isolation import ProcessLimits

LIMITS = {"limits": ProcessLimits(60)}
RUN = SimpleNamespace(folder=Path("run"))
RUN.manifest = SimpleNamespace(case=SimpleNamespace(mode="chained", precision="bfloat16", layers=None))
TAKERS = {
    "run": (api.run_device, {}),
    "run in a process of its own": (api.run_device, LIMITS),
    "run of layers": (api.run_device, {"mode": "local", "layers": "0:1"}),
    "gate": (api.gate_device, {}),
    "gate in a process of its own": (api.gate_device, LIMITS),
    "diagnose": (api.diagnose_device, {}),
    "diagnose in a process of its own": (api.diagnose_device, LIMITS),
    "reduce": (api.reduce_failure, {}),
    "difference": (lambda golden, device: api.device_difference(golden, RUN, device), {}),
    "check": (lambda golden, device: api.check_device(device), {}),
    "bench": (lambda golden, device: api.bench_device(device), {}),
    "bench of several": (lambda golden, device: api.bench_device(("numpy", device)), {}),
}


@pytest.mark.parametrize("name", ["", " "])
@pytest.mark.parametrize("taker", TAKERS)
def test_an_empty_name_of_a_device_is_refused(taker, name, shallow_golden, tmp_path, monkeypatch):
    monkeypatch.setenv("PARITY_HOME", str(tmp_path))
    monkeypatch.chdir(shallow_golden.folder)  # an empty path is a dump then
    take, options = TAKERS[taker]
    with pytest.raises(UsageError) as refused:
        take(api.open_golden(shallow_golden.folder), name, **options)
    said = str(refused.value)
    assert said.startswith((f"--device {name}: neither one of ", "--against is empty")) and "\n" not in said
    assert not list(tmp_path.iterdir())
