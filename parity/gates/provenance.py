"""Whether the golden may judge this device: nothing behind it changed, and it is not made of the device's source."""

from __future__ import annotations

from collections.abc import Iterator

from parity.compare.report import FAIL, INCONCLUSIVE, PASS
from parity.gates.context import Bench
from parity.gates.evidence import Check
from parity.golden.provenance import producer
from parity.golden.trust import changes, device_modules, enumerated, shared


def checks(bench: Bench) -> Iterator[Check]:
    """The golden against what it was dumped from, and against the device."""
    yield unchanged(bench)
    yield independent(bench)


def unchanged(bench: Bench) -> Check:
    """Checkpoints, tokenizer, chat template and the references' source are what they were."""
    found, manifest = changes(bench.golden), bench.golden.manifest
    figures = {"checkpoints": found.checkpoints, "sources": found.sources, "unknown": found.unknown}
    verdict, said = (
        PASS,
        f"both checkpoints, tokenizer, chat template and {len(manifest.producer.sources)} source files",
    )
    if found.all:
        verdict, said = (
            FAIL,
            f"{enumerated(found.all)} changed since {manifest.created}; `parity dump-golden` makes a new one",
        )
    elif found.unknown:
        verdict, said = INCONCLUSIVE, "; ".join(found.unknown)
    return Check("golden unchanged", verdict, said, figures)


def independent(bench: Bench) -> Check:
    """No module and no source file of the golden's producer is the device's."""
    golden, name = bench.golden.manifest.producer, "shares no source with the device"
    device = bench.device()
    says = device.describe()
    seen = producer(says.name, device_modules(device, says.modules, bench.device_name, golden), (), 0)
    figures = {"golden": golden.modules, "device": seen.modules}
    if common := shared(golden, seen):
        said = f"{enumerated(common)}: such a golden cannot judge this device"
        return Check(name, FAIL, said, figures | {"shared": common})
    if not golden.modules or not seen.sources:
        who = "device" if golden.modules else "golden"
        return Check(name, INCONCLUSIVE, f"the {who} does not say which source it is made of", figures)
    said = (
        f"none in common of {len(golden.modules)} modules behind the golden and {len(seen.modules)} behind the device"
    )
    return Check(name, PASS, said, figures)
