"""Faults of verify and accept, and of what is reported of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from parity.device.faults.planting import EITHER, PARALLEL, Family, altered, during, instead
from parity.device.pipeline import Pipeline

LENGTH, EMITTED, COUNT = "accept.length", "accept.emitted", "pipeline:emitted_length"
GOLDENS = ".".join(("parity", "references"))  # not a string with dots: such a name would count as imported here
verify = Family("verify", round=1)
accept = Family("accept", round=1, drafters=EITHER)
report = Family("report", round=1, same_text=True)


@verify(
    "verify-not-batch-invariant",
    "a verify pass of several rows takes its head in float8, a single row in bfloat16",
    "verify.logits",
    chained="",
    gate="verify",
    seen="tokenspeed #904, TRT-LLM #9208",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def linear(x: Any, weight: Any) -> Any:
            if not 1 < x.shape[1] <= pipeline.k + 1:
                return clean(x, weight)
            coarse = target.engine.host(weight).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
            return clean(x, target.engine.array(coarse, target.dtype))

        return linear

    during(pipeline, "target:linear", make)


@verify(
    "verify-rows-bidirectional",
    "the rows of a verify pass see the drafts behind them",
    "target.layers.0.attn_out",
    sites=("target.layers.*.attn_out",),
    seen="verify masks made for one row",
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def step(rows: Any) -> Any:
            last = rows.positions.copy()
            if rows.width <= pipeline.k + 1:
                last[:] = rows.positions[:, -1:]
            return replace(clean(rows), seen=clean(replace(rows, positions=last)).seen)

        return step

    instead(pipeline.target, "step", make)


@verify(
    "verify-first-row-missing",
    "drafts verified without the last emitted token in front",
    "target.embed",
    seen="class of NKIPy PR 63",
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def target_pass(ids: np.ndarray, width: int, group: str, record: Any) -> Any:
            shifted = np.append(ids[1:], ids[-1:]) if group == "verify" and len(ids) > 1 else ids
            return clean(shifted, width, group, record)

        return target_pass

    instead(pipeline, "_target_pass", make)


@verify(
    "verify-tie-rule", "argmax over ranks lets the last equal value win", gate="verify", round=None, seen="lattice #280"
)
def _(pipeline: Pipeline) -> None:
    during(
        pipeline, "target:greedy", lambda clean: lambda logits: clean(logits[..., ::-1]) * -1 + (logits.shape[-1] - 1)
    )


@accept("accept-past-mismatch", "matches counted beyond the first mismatch", LENGTH, round=None, seen="vLLM #2658")
def _(pipeline: Pipeline) -> None:
    def counted(drafts: Any, verified: Any, ends: Any, budget: Any) -> Any:
        same = np.sum(np.where(drafts == verified[:, :-1], 1, 0), axis=1)
        return np.minimum(same + 1, budget)

    during(pipeline, COUNT, lambda clean: counted)


@accept(
    "accept-one-late",
    "the rejected draft emitted in place of the correction",
    EMITTED,
    round=None,
    seen="openvino.genai #4190",
)
def _(pipeline: Pipeline) -> None:
    def late(emitted: np.ndarray, drafts: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return np.array([*emitted[:-1], *drafts[len(emitted) - 1 : len(emitted)], *emitted[-1:]])[: len(emitted)]

    altered(pipeline, "commit", EMITTED, late)


@accept(
    "accept-no-bonus",
    "no bonus token where all K drafts are accepted",
    LENGTH,
    same_text=True,
    seen="class of vLLM #17908",
    drafters=PARALLEL,
)
def _(pipeline: Pipeline) -> None:
    during(pipeline, COUNT, lambda clean: lambda *rest: np.minimum(clean(*rest), pipeline.k))


@accept("accept-none", "every draft rejected", LENGTH, same_text=True, seen="class of SGLang #27908 (acceptance 1.00)")
def _(pipeline: Pipeline) -> None:
    during(pipeline, COUNT, lambda clean: lambda *rest: np.minimum(clean(*rest), 1))


@accept("accept-all", "every draft accepted", LENGTH, round=None, seen="class of vLLM #2658")
def _(pipeline: Pipeline) -> None:
    during(
        pipeline,
        COUNT,
        lambda clean: lambda drafts, verified, ends, budget: clean(verified[:, :-1], verified, ends, budget),
    )


@accept(
    "accept-budget-overrun",
    "an accepted run not cut by the token budget",
    LENGTH,
    round=None,
    seen="class of NKIPy PR 63",
)
def _(pipeline: Pipeline) -> None:
    during(
        pipeline,
        COUNT,
        lambda clean: lambda drafts, verified, ends, budget: clean(drafts, verified, ends, budget + pipeline.k),
    )


@accept(
    "accept-end-ignored",
    "an accepted run goes on behind an end token",
    gate="acceptance",
    round=None,
    seen="class of vLLM #56101",
)
def _(pipeline: Pipeline) -> None:
    during(
        pipeline,
        COUNT,
        lambda clean: lambda drafts, verified, ends, budget: clean(drafts, verified, ends * 0 - 1, budget),
    )


@report(
    "report-truncated-step",
    "the last round's length counted before the budget cut it",
    LENGTH,
    round=None,
    seen="NKIPy PR 63, vLLM #56101",
)
def _(pipeline: Pipeline) -> None:
    def uncut(length: np.ndarray, drafts: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        agreed = np.append(np.asarray(drafts) == np.asarray(tokens)[:-1], False)
        return np.array([int(np.argmin(agreed)) + 1])

    altered(pipeline, "commit", LENGTH, uncut, only_shown=True)


@report("report-bonus", "acceptance length counted without the bonus", LENGTH, seen="vLLM #17908")
def _(pipeline: Pipeline) -> None:
    altered(pipeline, "commit", LENGTH, lambda length, drafts, tokens: length - 1, only_shown=True)


@report(
    "oracle-shared-bug",
    "the device's maths is the reference's own",
    gate="provenance",
    round=None,
    seen="openinfer #454",
)
def _(pipeline: Pipeline) -> None:
    says = pipeline.describe()
    instead(pipeline, "describe", lambda clean: lambda: replace(says, modules=(*says.modules, GOLDENS)))
