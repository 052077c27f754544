"""Whether a gpt-oss checkpoint holds what transformers' model of its config asks for."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import GptOssConfig, GptOssForCausalLM

from parity.references.checkpoint import read_config, read_state


def check_target(checkpoint: Path) -> None:
    """Hold a gpt-oss checkpoint's tensors against its own config; transformers only warns.

    Raises:
        UsageError: a tensor is missing, surplus or of the wrong shape.
    """
    with torch.device("meta"):
        model = GptOssForCausalLM(
            GptOssConfig.from_pretrained(checkpoint, local_files_only=True, trust_remote_code=False)
        )
    wanted = dict(model.state_dict())
    if "quantization_config" in read_config(checkpoint, "GptOssForCausalLM"):
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
