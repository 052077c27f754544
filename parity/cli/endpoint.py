"""`parity endpoint`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from parity.cli.opening import golden_option, open_judging
from parity.cli.options import bound_option, json_option, precision_option, write_json
from parity.cli.progress_bar import progress

if TYPE_CHECKING:
    from parity.golden.choice import Wanted


@click.command()
@click.argument("url")
@golden_option
@precision_option
@click.option("--plain", metavar="URL", help="The same model without speculation, to compare side by side.")
@click.option("--no-speculation", is_flag=True, help="The server decodes plainly: acceptance is not asked for.")
@click.option("--server", "kind", metavar="KIND", help="vllm, sglang, llamacpp or trtllm; as it says by default.")
@click.option("--model", metavar="NAME", help="Name of the model there; the only one by default.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True, max=86_400),
    default=120.0,
    show_default=True,
    metavar="S",
    help="Seconds in which an answer is there, whole.",
)
@click.option("--key-env", metavar="VARIABLE", help="Environment variable that holds the server's key.")
@bound_option
@click.option("--seed", type=int, default=0, show_default=True, help="Of the interval.")
@json_option
def endpoint(
    url: str,
    golden: Wanted,
    precision: str,
    plain: str | None,
    no_speculation: bool,
    kind: str | None,
    model: str | None,
    timeout: float,
    key_env: str | None,
    bound: float,
    seed: int,
    json_file: Path | None,
) -> None:
    """Compare a serving endpoint with a golden: log-probabilities, greedy text, acceptance, routed experts.

    For servers with an OpenAI-compatible API (vLLM, SGLang, llama.cpp, TensorRT-LLM) that serve the golden's target,
    and its drafter. Prompts are sent as token ids, one at a time; nobody else may use the server meanwhile.
    """
    from parity.api import judge_endpoint
    from parity.reports.gates import print_gates, print_result

    key = _key(key_env)
    opened = open_judging(golden)
    with progress("endpoint") as bar:
        report = judge_endpoint(
            opened,
            url,
            plain,
            precision,
            speculates=not no_speculation,
            kind=kind or "",
            model=model or "",
            timeout=timeout,
            key=key,
            bound=bound,
            seed=seed,
            progress=bar,
        )
    for result in report.results:
        print_result(result)
    print_gates(report, "endpoint")
    write_json(json_file, report.to_dict())
    sys.exit(report.exit_code)


def _key(variable: str | None) -> str:
    """Raises:
    UsageError: the variable is not there.
    """
    from parity.errors import UsageError

    if variable is None:
        return ""
    if not (key := os.environ.get(variable, "")):
        raise UsageError(f"--key-env {variable}: there is no such environment variable")
    return key
