"""The sizes that both config.json of a pair give to the axes of the stages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.drafter_config import drafter_config_of
from parity.errors import UsageError
from parity.files import config_of, content, parsed
from parity.limits import CONFIG_BYTES
from parity.stages import Named


@dataclass(frozen=True)
class PairSizes:
    """What the contract needs of two config.json; None where one does not say it.

    Args:
        sizes: axis letter to size, by side.
        eos: ids that end a generation by either file of the target.
    """

    layers: int
    drafter_layers: int
    vocab: int
    sizes: dict[str, dict[str, int | None]]
    eos: tuple[int, ...]

    def shape(self, named: Named) -> list[int | None]:
        """The sizes of a stage's axes, None where they are rows or not known."""
        drafter = named.stage.side == "drafter" or named.name.startswith("kv.drafter")
        return [self.sizes["drafter" if drafter else "target"].get(axis) for axis in named.stage.axes]


def read_pair(target: Path, drafter: Path) -> PairSizes:
    """The sizes of a pair of checkpoints.

    Raises:
        UsageError: a config.json is missing, unreadable, or does not say how many layers and tokens there are.
    """
    of_target, of_drafter = config_of(target), drafter_config_of(drafter)
    vocab, hidden = _need(of_target, "vocab_size", target), of_target.get("hidden_size")
    sizes = {"target": _sizes(of_target), "drafter": _sizes(of_drafter)}
    sizes["target"] |= {"E": of_target.get("num_local_experts"), "X": of_target.get("num_experts_per_tok"), "V": vocab}
    sizes["drafter"]["VD"] = of_drafter.get("draft_vocab_size") or of_drafter.get("vocab_size")
    key = "eagle_aux_hidden_state_layer_ids"
    block = (of_drafter.get("dflash_config") or {}).get("target_layer_ids", of_drafter.get(key))
    taps = (of_drafter.get("eagle_config") or {}).get(key, block)
    if isinstance(taps, list) and isinstance(hidden, int):
        sizes["drafter"]["TH"] = len(taps) * (of_drafter.get("target_hidden_size") or hidden)
    return PairSizes(
        _need(of_target, "num_hidden_layers", target),
        0 if "prompt_lookup_max" in of_drafter else _need(of_drafter, "num_hidden_layers", drafter),
        vocab,
        sizes,
        _eos(target, of_target),
    )


def _eos(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """Ids that end a generation: generation_config.json's where there is one, else config.json's."""
    path = folder / "generation_config.json"
    said = parsed(content(path, CONFIG_BYTES), str(path)) if path.is_file() else {}
    eos = said.get("eos_token_id") if isinstance(said, dict) else None
    eos = config.get("eos_token_id") if eos is None else eos
    return tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)


def _need(config: dict[str, Any], key: str, folder: Path) -> int:
    if not isinstance(config.get(key), int):
        raise UsageError(f"{folder / 'config.json'} has no {key}: name the folder of a checkpoint")
    return int(config[key])


def _sizes(config: dict[str, Any]) -> dict[str, int | None]:
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    size = config.get("head_dim") or (hidden // heads if heads and hidden else None)
    return {"H": hidden, "N": heads, "G": config.get("num_key_value_heads") or heads, "D": size}
