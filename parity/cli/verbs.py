"""The commands by what they are for. Each is imported when it is asked for: to make their options takes a while."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import NamedTuple

from click import Command


class Verb(NamedTuple):
    """A command: its name, module and function below `parity.cli`, what it does, and an example that its help shows."""

    name: str
    place: str
    about: str
    example: str

    def load(self) -> Command:
        """Import it."""
        module, name = self.place.split(".")
        command: Command = getattr(import_module(f"parity.cli.{module}"), name)
        command.short_help, command.epilog = self.about, f"Example: {self.example}"
        return command


GROUPS: dict[str, tuple[Verb, ...]] = {
    "Make": (
        Verb(
            "new-device",
            "device.new_device",
            "a skeleton of a device, and its test",
            "parity new-device my_port --torch",
        ),
        Verb(
            "dump-golden",
            "golden.dump_golden",
            "the references' tensors, stage by stage",
            "parity dump-golden --target CKPT --drafter CKPT --prompts FILE -k 4",
        ),
        Verb(
            "run",
            "run.run",
            "a device over a golden's prompts, kept as a folder",
            "parity run --device my_port:load --out RUN",
        ),
        Verb(
            "import",
            "imports.import_dump",
            "another tool's dump as a run",
            "parity import --from sglang DUMP --map FILE --out RUN",
        ),
        Verb(
            "export",
            "imports.export_dump",
            "a golden or a run as one file of plain arrays",
            "parity export RUN run.npz",
        ),
    ),
    "Compare": (
        Verb(
            "check-device",
            "device.check_device",
            "a device with the contract, line by line",
            "parity check-device --device my_port:load",
        ),
        Verb(
            "diff",
            "diff.diff",
            "a device with a golden: where they first part",
            "parity diff --device my_port:load --stage 'drafter.*'",
        ),
        Verb(
            "gate",
            "gate.gate",
            "every gate over a device, joined by AND",
            "parity gate --device my_port:load --only lossless",
        ),
        Verb(
            "endpoint",
            "endpoint.endpoint",
            "a serving endpoint with a golden",
            "parity endpoint http://HOST:8000 --plain http://HOST:8001",
        ),
        Verb(
            "bench",
            "bench.bench",
            "devices with and without drafts: does speculation pay",
            "parity bench --device xla -k 1-8",
        ),
        Verb(
            "curve",
            "curve.curve",
            "acceptance by draft length, with a published curve",
            "parity curve GOLDEN --against FILE.yaml",
        ),
        Verb("engines", "engines.engines", "every engine with the golden, and every two of them", "parity engines"),
        Verb(
            "shapes",
            "shapes.shapes",
            "every matrix multiplication of a run, from the configs",
            "parity shapes --model 20b",
        ),
        Verb("ops", "ops.ops", "every other operation of a run, alone, with float64", "parity ops --device xla"),
        Verb(
            "scan-log", "scan_log.scan_log", "lines of a log that say another kernel ran", "parity scan-log compile.log"
        ),
    ),
    "Explain": (
        Verb(
            "diagnose",
            "diagnose.diagnose",
            "the defect behind a red run, by name",
            "parity diagnose RUN --golden GOLDEN",
        ),
        Verb("reduce", "reduce.reduce", "the smallest case that still fails", "parity reduce --device my_port:load"),
        Verb("inspect", "golden.inspect", "what a golden or a run folder holds", "parity inspect GOLDEN"),
        Verb("taps", "taps.taps", "tap layers in every numbering", "parity taps 2 12 21 --from vllm --layers 24"),
    ),
    "Nights": (
        Verb("nightly", "nightly.nightly", "a matrix of cases, devices and gates", "parity nightly MATRIX.toml"),
        Verb("report", "report.report", "a night, or a run, as one HTML page", "parity report NIGHT"),
        Verb("history", "history.history", "figures of the nights, and what changed", "parity history --changes"),
        Verb("ratchet", "ratchet.ratchet", "bounds that the nights allow to be lower", "parity ratchet mine.toml"),
    ),
    "The harness itself": (
        Verb("demo", "demo.demo", "the whole job on the tiny pair, in two minutes", "parity demo"),
        Verb(
            "verify-golden",
            "verify_golden.verify_golden",
            "a golden dumped once more: the same bytes?",
            "parity verify-golden GOLDEN",
        ),
        Verb(
            "corroborate",
            "corroborate.corroborate",
            "references with each other: who confirms what",
            "parity corroborate GOLDEN VLLM",
        ),
        Verb("seal", "seal.seal", "the digest of a manifest, for a dump written by hand", "parity seal RUN"),
        Verb("policy", "policy.policy", "a policy as the TOML that it is", "parity policy > mine.toml"),
        Verb("calibrate", "calibrate.calibrate", "the policy's false alarms, counted", "parity calibrate"),
        Verb("faults", "faults.faults", "planted defects, which the gates have to see", "parity faults run --all"),
    ),
}
"""What each makes, compares or explains, in the order of use."""


class Verbs(MutableMapping[str, Command]):
    """Commands by name, in the order of `GROUPS`, each imported once it is looked up."""

    def __init__(self) -> None:
        self._held: dict[str, Verb | Command] = {verb.name: verb for members in GROUPS.values() for verb in members}

    def __getitem__(self, name: str) -> Command:
        held = self._held[name]
        if isinstance(held, Verb):
            held = self._held[name] = held.load()
        return held

    def __setitem__(self, name: str, command: Command) -> None:
        self._held[name] = command

    def __delitem__(self, name: str) -> None:
        del self._held[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)
