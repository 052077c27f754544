"""A golden out of vLLM: run it in float32, then in bfloat16 on the same choices, and write down both.

The bfloat16 run follows the float32 one's tokens, drafts and experts: the chained noise floor. vLLM's layers cannot be
started from given inputs and its paged caches are no plain rows: such a golden has no local floor and no cache stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from parity.errors import UsageError
from parity.golden.store import DumpWriter
from parity.stages import declared
from parity.trace import Tensors
from references.prompts import read_prompts
from references.request import Dumped, GoldenRequest, finish
from references.vllm_capture.adapt import adapted, check_target, parallel, read_config
from references.vllm_capture.case import admit, describe, eos
from references.vllm_capture.environment import find_python, run_job
from references.vllm_capture.rounds import Rounds
from references.vllm_capture.steps import read_steps


@dataclass(frozen=True)
class Request(GoldenRequest):
    """`python` is the one that has vLLM (found where None), `batch` the number of prompts that vLLM runs at a time.

    Without `floor` there is no bfloat16 run, and only a float32 device can be held against the golden.
    """

    python: Path | None = None
    batch: int = 1
    threads: int = 1
    floor: bool = True


def dump_golden(request: Request) -> Path:
    """Run vLLM over every prompt and write a golden folder.

    Raises:
        UsageError: no vLLM of a known version, a checkpoint that it cannot run, or bad prompts, K, budget or stages.
    """
    python = find_python(request.python)
    checkpoints = request.checkpoints()
    check_target(request.target)
    layers = tuple(read_config(folder)["num_hidden_layers"] for folder in (request.target, request.drafter))
    names = {name: named for name, named in declared(*layers).items() if named.stage.side != "kv"}
    stages = request.wanted(names, scores=request.floor)
    wanted = {named.name for named in stages}
    prompts = read_prompts(request.prompts, request.target, read_config(request.target)["vocab_size"])
    for _, ids in prompts:
        admit(request, len(ids))
    with TemporaryDirectory(prefix="parity-vllm-") as work, DumpWriter(request.out) as writer:
        drafter, notes = adapted(request.drafter, request.target, Path(work))
        truth: list[Rounds] = []
        for precision, result, found in _runs(request, python, drafter, [ids for _, ids in prompts], Path(work)):
            for number, rounds in enumerate(found):
                writer.add(number, precision, stages, _kept(rounds.tensors, wanted, precision))
            truth = truth or found
        cases = [(name, ids, rounds.generation) for (name, ids), rounds in zip(prompts, truth, strict=True)]
        finish(writer, request, checkpoints, Dumped(describe(result, request, notes), layers, stages, cases))
    return request.out


def _runs(
    request: Request, python: Path, drafter: Path, prompts: Sequence[Sequence[int]], work: Path
) -> Iterator[tuple[str, dict, list[Rounds]]]:
    """Run vLLM once in each precision: the precision, what vLLM said of itself, and each prompt's rounds."""
    precisions = ("float32", "bfloat16") if request.floor else ("float32",)
    job = {
        "target": str(request.target.resolve()),
        "drafter": str(drafter.resolve()),
        "parallel": parallel(request.drafter),
        "prompts": [list(ids) for ids in prompts],
        "k": request.k,
        "batch": request.batch,
        "max_new_tokens": request.max_new_tokens,
        "eos": eos(request.target),
    }
    log = request.out.with_name(f"{request.out.name}.vllm.log")
    for number, precision in enumerate(precisions):
        request.progress(number, len(precisions), precision)
        if number:
            job["forced"] = str(work / precisions[0])
        result = run_job(python, job | {"precision": precision}, work / precision, request.threads, log)
        yield precision, result, _rounds(job, result, work / precision)
    request.progress(len(precisions), len(precisions), "")
    log.unlink()


def _rounds(job: dict, result: dict, folder: Path) -> list[Rounds]:
    """Each prompt's rounds, held against what vLLM says that it emitted."""
    steps, found = read_steps(folder), []
    for ids, name, emitted in zip(job["prompts"], result["requests"], result["emitted"], strict=True):
        rounds = Rounds(steps, name, len(ids), job["k"], job["max_new_tokens"], job["eos"])
        if rounds.emitted != emitted or not ("forced" in job or rounds.consistent):
            raise UsageError(f"vLLM emitted {emitted} for prompt {name}, its recorded steps say {rounds.emitted}")
        found.append(rounds)
    return found


def _kept(tensors: Tensors, wanted: set[str], precision: str) -> Tensors:
    """The declared stages; what was accepted is the float32 run's, which the other one follows."""
    own = precision == "float32"
    return {place: value for place, value in tensors.items() if place[1] in wanted and (own or "accept." not in place[1])}
