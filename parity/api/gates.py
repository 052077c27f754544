"""What a device, or a server, has to hold beside its tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.api.arguments import File, refuse_unopened
from parity.errors import UsageError
from parity.progress import Progress, quiet

if TYPE_CHECKING:
    from parity.endpoint import EndpointReport
    from parity.gates.gate import GateReport, GateResult
    from parity.golden.views import DumpView, TrustedGolden
    from parity.isolation import ProcessLimits


def gate_device(
    golden: TrustedGolden,
    device: str = "numpy",
    precision: str = "bfloat16",
    only: Sequence[str] | None = None,
    *,
    quick: bool = False,
    run: DumpView | None = None,
    histories: int = 500,
    seed: int = 0,
    bound: float = 0.05,
    keep: File | None = None,
    limits: ProcessLimits | None = None,
    done: Callable[[GateResult], None] = lambda result: None,
    progress: Progress = quiet,
) -> GateReport:
    """Run every gate over a device, joined by AND: stages, decisions, losslessness, acceptance, caches.

    Args:
        only: names of `parity.gates.GATES`; all where None.
        quick: the most telling gates over one prompt's first rounds, see `parity.gates.quick`: the report fails, or is
            inconclusive; with neither `only` nor `run`.
        run: judged instead of one that is made in its mode.
        histories: accept/reject histories of the rollback gate.
        seed: of everything random.
        bound: relative loss of acceptance length that still passes.
        keep: a new folder for the runs that the gates make; else they are removed.
        limits: of a process of its own that the device then lives in; None has it live in this one.
        done: told each gate's result as it comes.

    Raises:
        UsageError: no such gate or device, or it is not the one that made the run.
    """
    from parity.builders import gate_context
    from parity.gates import GATES, run_gates
    from parity.gates.gate import unknown_gate
    from parity.gates.quick import HISTORIES, QUICK_GATES, quick_look
    from parity.layers import refuse_layers
    from parity.partial import scratch, taken

    refuse_unopened(golden=golden, run=run)
    if only is not None and not only:
        raise UsageError("only names no gate: leave it out for all of them")
    only = only or ()
    if unknown := [name for name in only if name not in GATES]:
        raise unknown_gate(unknown[0])
    if quick and (only or run):
        raise UsageError(
            "a quick look chooses its gates and makes its own short runs: it goes with neither --only nor --run"
        )
    look = quick_look(golden, histories) if quick else None
    if look:
        golden, only, histories = look.golden, QUICK_GATES, HISTORIES
    with ExitStack() as stack:
        if keep and taken(Path(keep)):
            raise UsageError(f"{keep} exists already; choose another --keep or remove it")
        folder = Path(keep) if keep else stack.enter_context(scratch("gate"))
        asked: dict[str, Any] = dict(histories=histories, seed=seed, bound=bound, progress=progress)
        context = gate_context(golden, device, precision, folder, limits, **asked)
        if run:
            refuse_layers(run, "a gate")
            context.give(run)
        return replace(run_gates(context, only, done), left_out=tuple(look.left_out) if look else ())


def judge_endpoint(
    golden: TrustedGolden,
    url: str,
    plain: str | None = None,
    precision: str = "bfloat16",
    *,
    speculates: bool = True,
    kind: str = "",
    model: str = "",
    timeout: float = 120.0,
    key: str = "",
    bound: float = 0.05,
    seed: int = 0,
    progress: Progress = quiet,
) -> EndpointReport:
    """Compare a serving endpoint with a golden of its pair: log-probabilities, greedy text, acceptance, experts.

    Args:
        url: of an OpenAI-compatible server, `http://host:port`.
        plain: another one that serves the same model without speculation.
        precision: the servers compute in, `bfloat16` or `float32`.
        speculates: False where the server decodes plainly: its acceptance is not asked for.
        kind: `vllm`, `sglang`, `llamacpp` or `trtllm`; what the server says where empty.
        model: its name there; the only one where empty.
        timeout: seconds in which one answer is there, whole.
        key: sent as a bearer token where there is one.
        bound: relative loss of acceptance length that still passes.
        seed: of the interval.

    Raises:
        UsageError: that is no URL, nobody listens there, or there is no such kind or model.
        Inconclusive: the server does not answer as such a server does, or the golden lacks logits.
    """
    from parity.endpoint import Examination, examine
    from parity.endpoint.connection import Connection
    from parity.endpoint.server import Server

    server = Server(Connection(url, timeout, key), kind, model)
    other = Server(Connection(plain, timeout, key), kind, model) if plain else None
    return examine(Examination(golden, server, other, precision, speculates, bound, seed, progress))
