"""Tap layers between the numberings in use: the one table that turns a project's layer ids into residual streams.

`in_of[k]` is the residual stream that enters layer k; `out_of[k]` leaves it: `in_of[k] == out_of[k - 1]`. References
and devices read a checkpoint's own ids by themselves, so that a misreading shows as a difference; this table is for
what comes from elsewhere (docs/taps.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parity.errors import UsageError


@dataclass(frozen=True)
class Convention:
    """One project's numbering.

    Args:
        side: what an id k is: the stream that enters layer k (`in_of`) or leaves it (`out_of`).
        says: what the project does with ids, beyond their side.
        source: repository, file and name where it is to be seen, and the version that was read.
        default: the ids of an EAGLE-3 drafter that names none, of L layers; None where there is none.
        sorts: the order and double ids are lost.
        normed: the last id is behind the final norm, and so is no tap.
    """

    side: str
    says: str
    source: str
    default: Callable[[int], tuple[int, ...]] | None = None
    sorts: bool = False
    normed: bool = False

    @property
    def shift(self) -> int:
        """What is added to an id to make it an `in_of`."""
        return {"in_of": 0, "out_of": 1}[self.side]


CONVENTIONS: dict[str, Convention] = {
    "vllm": Convention(
        "in_of",
        "eagle_aux_hidden_state_layer_ids, on top of the config or in eagle_config; captured after layer k - 1 as k",
        "vllm 0.32.0, vllm/model_executor/models/interfaces.py: EagleModelMixin",
        lambda layers: (2, layers // 2, layers - 3),
        sorts=True,
    ),
    "hf": Convention(
        "in_of",
        "hidden_states[k] of output_hidden_states=True; [0] are the embeddings, the last one is behind the final norm",
        "transformers 5.23.0, utils/output_capturing.py: capture_outputs (tie_last_hidden_states)",
        normed=True,
    ),
    "nxdi": Convention(
        "out_of",
        "fixed in the model: appended after layer idx has run",
        "aws-neuron/neuronx-distributed-inference 4bcdc54, models/model_base.py: get_model_output",
        lambda layers: (1, layers // 2 - 1, layers - 4),
    ),
    "sglang": Convention(
        "out_of",
        "ids given to set_eagle3_layers_to_capture are raised by one and captured before that layer; the defaults are "
        "not raised",
        "sgl-project/sglang 009c680, python/sglang/srt/models/gpt_oss.py: set_eagle3_layers_to_capture",
        lambda layers: (1, layers // 2 - 1, layers - 4),
    ),
    "automodel": Convention(
        "out_of",
        "aux_layer_ids: forward hooks on the output of decoder layer k; raised by one where vLLM captures for it",
        "NVIDIA-NeMo/Automodel 36044ad, nemo_automodel/components/speculative/eagle/target.py",
        lambda layers: (1, layers // 2 - 1, layers - 4),
    ),
    "nkipy": Convention(
        "out_of",
        "Config.aux_layers: kept after layer i has run",
        "aws-neuron/nkipy b91c980, examples/models/gpt_oss/config.py: default_aux_layers",
        lambda layers: (1, layers // 2 - 1, layers - 4),
    ),
    "in_of": Convention("in_of", "this project's own", "parity/taps.py"),
    "out_of": Convention("out_of", "the stage target.layers.{l}.out", "parity/stages.py"),
}


def in_of(convention: str, ids: Sequence[int], layers: int) -> tuple[int, ...]:
    """Layer ids of a convention as `in_of` numbers, in the order the project concatenates them.

    Args:
        layers: L of the target. A negative id counts from the end, where the convention is a Python index (`hf`).

    Raises:
        UsageError: the convention is unknown, or an id is no residual stream of this many layers.
    """
    known = _known(convention)
    streams = []
    for layer in ids:
        place = layer + layers + 1 if known.normed and layer < 0 else layer
        last = layers - 1 if known.normed or known.shift else layers
        if known.normed and place == layers:
            raise UsageError(
                f"hidden_states[{layer}] of {layers} layers is behind the final norm: it is no residual stream"
            )
        if not 0 <= place <= last:
            raise UsageError(
                f"{convention} layer {layer}: a target of {layers} layers has 0 to {last} in this numbering"
            )
        streams.append(place + known.shift)
    return tuple(sorted(set(streams))) if known.sorts else tuple(streams)


def numbered(convention: str, taps: Sequence[int], layers: int) -> tuple[int, ...]:
    """`in_of` numbers as a convention's ids.

    Raises:
        UsageError: the convention is unknown, or cannot express them: an order it loses, a stream it does not have.
    """
    known = _known(convention)
    ids = tuple(tap - known.shift for tap in taps)
    if in_of(convention, ids, layers) != tuple(taps):
        raise UsageError(f"{convention} sorts its layers: it cannot express {list(taps)} in this order")
    return ids


def default(convention: str, layers: int) -> tuple[int, ...]:
    """The taps of a drafter that names none, as `in_of` numbers.

    Raises:
        UsageError: the convention is unknown or has no default.
    """
    known = _known(convention)
    if known.default is None:
        raise UsageError(f"{convention} has no default taps")
    return in_of(convention, known.default(layers), layers)


def _known(convention: str) -> Convention:
    if convention not in CONVENTIONS:
        raise UsageError(f"{convention!r} is no known numbering; there are {', '.join(CONVENTIONS)}")
    return CONVENTIONS[convention]
