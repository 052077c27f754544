"""A gpt-oss checkpoint as transformers sees it: its config, and the tensors that the model of that config asks for."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import GptOssConfig, GptOssForCausalLM

from parity.errors import UsageError
from parity.references.checkpoint import TARGET, read_config, read_state


def target_config(checkpoint: Path) -> GptOssConfig:
    """A target's config.json as Hugging Face reads it.

    Raises:
        UsageError: it refuses a value.
    """
    try:
        return GptOssConfig.from_pretrained(checkpoint, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # its own classes of errors, which no base class joins
        raise _unusable(checkpoint, error) from None


def _unusable(checkpoint: Path, error: Exception) -> UsageError:
    said = " ".join(str(error).split())[:200]
    return UsageError(f"{checkpoint / 'config.json'}: Hugging Face makes no model of it: {said}")


def check_target(checkpoint: Path) -> None:
    """Hold a gpt-oss checkpoint's tensors against its own config; transformers only warns.

    Raises:
        UsageError: a tensor is missing, surplus or of the wrong shape.
    """
    try:
        with torch.device("meta"):
            model = GptOssForCausalLM(target_config(checkpoint))
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RuntimeError) as error:
        raise _unusable(checkpoint, error) from None
    wanted = dict(model.state_dict())
    if "quantization_config" in read_config(checkpoint, TARGET):
        wanted = _mxfp4_names(wanted)
    read_state(checkpoint, wanted)


def _mxfp4_names(wanted: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Expert weights [E, in, out] are on disk as blocks [E, out, in/32, 16] and scales [E, out, in/32]."""
    found = {}
    for name, tensor in wanted.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, inputs, outputs = tensor.shape
            found[f"{name}_blocks"] = tensor.new_empty(experts, outputs, inputs // 32, 16)
            found[f"{name}_scales"] = tensor.new_empty(experts, outputs, inputs // 32)
        else:
            found[name] = tensor
    return found
