"""Peak memory: of a process of its own for each device and K, so that nobody else's is in it."""

from __future__ import annotations

from parity.bench.decoding import speculative
from parity.bench.request import CALLED, SCENARIOS, Setting
from parity.bench.session import Session
from parity.errors import Inconclusive
from parity.isolation import IsolatedFactory, ProcessLimits

Held = dict[tuple[str, str, int], tuple[int, int]]
"""By block, device and K: bytes at the most, and before the device was built."""


def peak_memory(session: Session) -> Held:
    """Of every contender and K in every setting, over the first prompt of the first workload; nothing of those that
    cannot run."""
    found: Held = {}
    for number, setting in enumerate(session.request.settings()):
        if not SCENARIOS[setting.scenario].speculates:
            continue
        for name in session.request.contenders:
            for k in session.request.ks_of(name):
                if (held := _held(session, setting, number, name, k)) is not None:
                    for workload in session.request.workloads:
                        block = f"{setting.scenario}/{workload.name}/{setting.context}/b{setting.lanes}"
                        found[block, CALLED.get(name, name), k] = held
    return found


def _held(session: Session, setting: Setting, number: int, name: str, k: int) -> tuple[int, int] | None:
    request = session.request
    workload = session.lengthened(setting, request.workloads[0])
    prompt = dict([next(iter(workload.prompts.items()))])
    pair = session.pair(setting, [workload], session.folder / f"memory-{number}-{CALLED.get(name, 'device')}-{k}")
    try:
        factory = IsolatedFactory(name, *pair, k, ProcessLimits())
    except Inconclusive:
        return None
    try:
        before = factory.process.peak_memory
        room = len(next(iter(prompt.values()))) + request.max_new_tokens + max(request.ks)
        device = factory(request.precision, k=k, **session.wanted(name, pair, k, setting, room))
        speculative(device)(prompt, request.max_new_tokens)
        return factory.process.peak_memory, before
    except Inconclusive:
        return None
    finally:
        factory.process.end()
