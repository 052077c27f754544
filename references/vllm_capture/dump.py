"""A golden out of vLLM: run it in float32, then in bfloat16 on the same choices, and write down both.

A bfloat16 run follows the float32 one's tokens, drafts and experts: the chained noise floor, pooled over several
roundings. vLLM's layers cannot be started from given inputs and its paged caches are not plain rows: such a golden has
no local floor and no cache stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from parity.errors import UsageError
from parity.families import Family
from parity.golden.store import DumpWriter
from parity.references.drafter_formats import read_drafter
from parity.references.drafting import is_chain, refuse_family
from parity.references.prompts import read_prompts
from parity.references.request import Dumped, GoldenRequest, finish
from parity.references.roundings import pooled
from parity.references.vllm_capture.adapt import adapted, check_target, parallel, read_config
from parity.references.vllm_capture.case import admit, describe, eos
from parity.references.vllm_capture.environment import find_python, run_job
from parity.references.vllm_capture.reordered import reordered
from parity.references.vllm_capture.rounds import Rounds
from parity.references.vllm_capture.steps import read_steps
from parity.stages import declared
from parity.trace import Tensors


@dataclass(frozen=True)
class Request(GoldenRequest):
    """`python` is the one that has vLLM (found where None), `batch` the number of prompts that vLLM runs at a time.

    Without `floor` there is no bfloat16 run, and only a float32 device can be compared with the golden; `roundings` is
    the number of bfloat16 runs behind it. One is too few: vLLM rounds less than Hugging Face, and the luck of a single
    rounding convicted a clean device in one row of 5,552.
    """

    python: Path | None = None
    batch: int = 1
    threads: int = 1
    floor: bool = True
    roundings: int = 3


def dump_golden(request: Request) -> Path:
    """Run vLLM over every prompt and write a golden folder.

    Raises:
        UsageError: no vLLM of a known version, a checkpoint that it cannot run, or bad prompts, K, budget or stages.
    """
    refuse_family(request.drafter, "vllm", ("p-eagle", "eagle-3"))
    python = find_python(request.python)
    checkpoints = request.checkpoints()
    check_target(request.target)
    if parallel(request.drafter) == is_chain(request.drafter):
        raise UsageError(f"{request.drafter}: vLLM's capture hands on a placeholder by the name ptd_token_id only")
    layers = (read_config(request.target)["num_hidden_layers"], read_drafter(request.drafter)["num_hidden_layers"])
    names = {name: named for name, named in declared(*layers).items() if named.stage.side != "kv"}
    stages = request.wanted(names, scores=request.floor)
    wanted = {named.name for named in stages}
    prompts = read_prompts(request.prompts, request.target, read_config(request.target)["vocab_size"])
    for _, ids in prompts:
        admit(request, len(ids))
    with TemporaryDirectory(prefix="parity-vllm-") as work, DumpWriter(request.out, request.max_bytes) as writer:
        drafter, notes = adapted(request.drafter, request.target, Path(work))
        runs = _runs(request, python, drafter, [ids for _, ids in prompts], Path(work))
        result, truth = next(runs)
        exact = [_kept(rounds.tensors, wanted) for rounds in truth]
        for number, tensors in enumerate(exact):
            writer.add(number, "float32", stages, tensors)
        passes = [found for _, found in runs]
        for number, tensors in enumerate(exact if passes else ()):
            found = (_kept(one[number].tensors, wanted, chosen=False) for one in passes)
            writer.add(number, "bfloat16", stages, pooled(tensors, found))
        cases = [(name, ids, rounds.generation) for (name, ids), rounds in zip(prompts, truth, strict=True)]
        who = describe(result, request, notes)
        roundings = request.roundings if request.floor else 1
        family: Family = "p-eagle" if parallel(request.drafter) else "eagle-3"
        finish(writer, request, checkpoints, Dumped(who, layers, stages, cases, roundings, family=family))
    return request.out


def _runs(
    request: Request, python: Path, drafter: Path, prompts: Sequence[Sequence[int]], work: Path
) -> Iterator[tuple[dict[str, Any], list[Rounds]]]:
    """Run vLLM in float32, then in every rounding of bfloat16: what vLLM said of itself, and each prompt's rounds."""
    settings = {
        "parallel": parallel(request.drafter),
        "prompts": [list(ids) for ids in prompts],
        "k": request.k,
        "batch": request.batch,
        "max_new_tokens": request.max_new_tokens,
        "eos": eos(request.target),
    }
    log = request.out.with_name(f"{request.out.name}.vllm.log")
    orders = [("float32", 0), *(("bfloat16", number) for number in range(request.roundings if request.floor else 0))]
    for done, (precision, number) in enumerate(orders):
        request.progress(done, len(orders), precision)
        out = work / f"{precision}-{number}"
        folders = {"target": request.target.resolve(), "drafter": drafter.resolve()}
        pair = {side: str(reordered(folder, number, work / f"{side}-{number}")) for side, folder in folders.items()}
        job = settings | pair | ({"forced": str(work / "float32-0")} if done else {})
        result = run_job(python, job | {"precision": precision}, out, request.threads, log)
        yield result, _rounds(job, result, out)
    request.progress(len(orders), len(orders), "")
    log.unlink()


def _rounds(job: dict[str, Any], result: dict[str, Any], folder: Path) -> list[Rounds]:
    """Each prompt's rounds, compared with what vLLM says that it emitted."""
    steps, found = read_steps(folder), []
    for ids, name, emitted in zip(job["prompts"], result["requests"], result["emitted"], strict=True):
        rounds = Rounds(steps, name, len(ids), job["k"], job["max_new_tokens"], job["eos"])
        if rounds.emitted != emitted or not ("forced" in job or rounds.consistent):
            raise UsageError(f"vLLM emitted {emitted} for prompt {name}, its recorded steps say {rounds.emitted}")
        found.append(rounds)
    return found


def _kept(tensors: Tensors, wanted: set[str], chosen: bool = True) -> Tensors:
    """The declared stages; what was accepted is the float32 run's, which the others follow."""
    return {
        place: value for place, value in tensors.items() if place[1] in wanted and (chosen or "accept." not in place[1])
    }
