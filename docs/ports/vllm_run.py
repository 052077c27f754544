"""vLLM's own engine as the device: it runs as it is, what its hooks saw becomes a run folder.

python -m docs.ports.vllm_run GOLDEN OUT [bfloat16|float32] && parity diff OUT --golden GOLDEN
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from parity.adapters import read_tensors, write_run
from parity.api import open_golden
from parity.golden.case import Generation
from parity.seam import Description, Shown

INSIDE = Path(__file__).with_name("vllm_inside.py")
SHOWN = (
    *map(Shown, ("target.layers.*.out", "verify.logits", "verify.tokens", "drafter.taps", "drafter.logits")),
    Shown("target.logits", rows="last"),
)
MATHS = ("vllm.model_executor.models.gpt_oss", "vllm.model_executor.models.llama_eagle3")


def run(golden, out, precision="float32", drafter=None, python=None):
    """Run vLLM over a golden's prompts and write the run folder; another folder may stand for the drafter's."""
    case, model = golden.manifest.case, golden.manifest.model
    config = json.loads(Path(model.target.path, "config.json").read_text())
    job = {
        "target": model.target.path,
        "drafter": str(drafter or model.drafter.path),
        "precision": precision,
        "k": case.k,
        "max_new_tokens": case.max_new_tokens,
        "prompts": [prompt.ids for prompt in case.prompts],
        "eos": config["eos_token_id"],
    }
    with TemporaryDirectory() as folder:
        Path(folder, "job.json").write_text(json.dumps(job | {"out": folder}))
        python = python or os.environ.get("PARITY_VLLM_PYTHON", ".venv-vllm/bin/python")
        alone = {"PYTHONPATH": str(INSIDE.parent), "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        subprocess.run(
            [python, INSIDE, Path(folder, "job.json")], env=os.environ | alone, check=True, stdout=sys.stderr
        )
        result = json.loads(Path(folder, "result.json").read_text())
        steps = [read_tensors(path) for path in sorted(Path(folder).glob("*.safetensors"))]
    piece, generations = {}, {}
    for number, emitted in enumerate(result["emitted"]):
        lengths, accepted, drafts, taps = [], [], None, None
        for round_, step in enumerate(steps_of(steps, emitted)):
            fresh, head = step.pop("emitted"), "verify" if round_ else "target"
            shown = {f"{head}.logits": step["logits"], f"{head}.tokens": step["logits"].astype(np.float32).argmax(-1)}
            shown |= {f"target.layers.{one}.out": step[f"out.{one}"] for one in range(model.num_layers)}
            if round_:
                shown |= drafts | {"drafter.taps": taps}
                shown |= {"accept.length": np.array([len(fresh)]), "accept.emitted": np.array(fresh)}
                lengths.append(len(fresh))
                accepted.append(int(np.cumprod(drafts["drafter.draft_tokens"][: len(fresh)] == fresh[: case.k]).sum()))
            else:  # vLLM drafts at the end of a step: the prefill's rows but the last are its own round
                shown["drafter.taps"] = step["taps"][: len(case.prompts[number].ids) - 1]
            first = 0 if round_ else len(case.prompts[number].ids) - 1
            taps = step["taps"][first : first + len(fresh)]
            drafts = {"drafter.draft_tokens": step["drafts"].reshape(-1), "drafter.logits": step["draft_logits"]}
            piece |= {(number, round_, stage): value for stage, value in shown.items()}
        finish = "eos" if emitted[-1] in config["eos_token_id"] else "length"
        generations[number] = Generation(
            emitted=emitted, acceptance_length=lengths, accepted_drafts=accepted, finish=finish
        )
    says = Description(
        name="vllm",
        precision=precision,
        num_layers=model.num_layers,
        num_drafter_layers=model.num_drafter_layers,
        k=case.k,
        max_positions=config["max_position_embeddings"],
        versions={"vllm": result["vllm"]},
        modules=(__name__, *MATHS),
        shown=SHOWN,
    )
    return write_run(golden, Path(out), says, [piece], generations=generations)


def steps_of(steps, emitted):
    """The next steps of the recording until they have emitted these ids, which the engine has cut, and each one's."""
    left = list(emitted)
    while left:
        step = steps.pop(0)
        sampled = [int(token) for token in step["sampled"].reshape(-1) if token >= 0]
        fresh, left = left[: len(sampled)], left[len(sampled) :]
        yield step | {"emitted": fresh}


if __name__ == "__main__":
    golden, out, *precision = sys.argv[1:]
    print(run(open_golden(golden), out, *precision))
