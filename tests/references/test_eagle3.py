"""The EAGLE-3 oracle: its chain against the equations over the whole context, its checkpoint, its config."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from parity.errors import UsageError
from parity.references.capture import torch_tap
from parity.references.drafter_config import Eagle3Config
from parity.references.drafting import is_chain
from parity.references.eagle3 import Eagle3
from tests.references.chain_cases import RAW, ROUNDING, Passes, chain, feed, recomputed, relative, small_drafter

K, LENGTH = 4, 14


@pytest.fixture(scope="module")
def drafter():
    return small_drafter()


@pytest.fixture(scope="module")
def context():
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 90, (LENGTH,), generator=generator), torch.randn(LENGTH - 1, 60, generator=generator)


def logits_of(passes: Passes) -> torch.Tensor:
    return torch.cat([torch.from_numpy(rows) for rows in passes.stages["drafter.logits"]])


@pytest.mark.parametrize("committed", [1, 3])
@torch.no_grad()
def test_a_chain_over_the_cache_equals_every_step_recomputed_over_the_whole_context(committed, drafter, context):
    passes = Passes()
    drafts = feed(chain(drafter, K, torch_tap(passes)), *context, committed)
    true_drafts, true_logits = recomputed(drafter, *context, K)
    assert drafts.tolist() == true_drafts
    assert relative(logits_of(passes), true_logits) < ROUNDING


@pytest.mark.parametrize(
    "options",
    [
        ("norm_before_fc",),
        ("fc_norm",),
        ("norm_before_residual",),
        ("norm_output",),
        ("fc_norm", "norm_before_residual", "norm_output"),
    ],
    ids="+".join,
)
@torch.no_grad()
def test_every_norm_that_a_config_may_ask_for_is_computed(options, context):
    drafter = small_drafter(**dict.fromkeys(options, True))
    passes = Passes()
    drafts = feed(chain(drafter, K, torch_tap(passes)), *context, 2)
    true_drafts, true_logits = recomputed(drafter, *context, K, options)
    assert drafts.tolist() == true_drafts
    assert relative(logits_of(passes), true_logits) < ROUNDING
    for one in options:
        _, without = recomputed(drafter, *context, K, set(options) - {one})
        assert relative(without, true_logits) > 1000 * ROUNDING, one


@torch.no_grad()
def test_a_hidden_recycled_behind_the_final_norm_is_seen(drafter, context):
    passes = Passes()
    loop = chain(drafter, K, torch_tap(passes))
    loop.recycled = lambda stream: drafter.norm(stream[-1:])
    feed(loop, *context, 2)
    _, true = recomputed(drafter, *context, K)
    assert relative(logits_of(passes)[:1], true[:1]) < ROUNDING
    assert (logits_of(passes)[1].double() - true[1]).abs().max() > 0.1


@torch.no_grad()
def test_a_chain_row_at_the_position_of_the_row_before_it_is_seen(drafter, context):
    passes = Passes()
    loop = chain(drafter, K, torch_tap(passes))
    right = loop.positions
    loop.positions = lambda rows, masked: right(rows, masked).clamp(max=loop.state.draft_length + 1)
    feed(loop, *context, 2)
    _, true = recomputed(drafter, *context, K)
    assert (logits_of(passes)[1].double() - true[1]).abs().max() > 1e-3


@torch.no_grad()
def test_rows_of_a_round_stand_in_the_order_in_which_they_ran(drafter, context):
    passes = Passes()
    tokens, taps = context
    loop = chain(drafter, K, torch_tap(passes))
    drafts = feed(loop, tokens, taps, 2)
    rows = {
        name: torch.cat([torch.from_numpy(part) for part in parts])
        for name, parts in passes.stages.items()
        if isinstance(parts, list)
    }
    assert rows["drafter.input_ids"].tolist() == tokens[-2:].tolist() + drafts[:-1].tolist()
    assert rows["drafter.positions"].tolist() == rows["drafter.slots"].tolist() == list(range(LENGTH - 3, LENGTH + 2))
    assert torch.equal(rows["drafter.fc_out"][2:], rows["drafter.layers.0.out"][1:-1])
    assert loop.state.draft_length == LENGTH - 1


@torch.no_grad()
def test_what_a_tap_puts_in_the_place_of_a_row_is_what_the_next_step_starts_from(drafter, context):
    class Forcing(Passes):
        def rows(self, stage, value, first, total):
            super().rows(stage, value, first, total)
            return value * 0 + 7 if stage == "drafter.draft_tokens" and first == 0 else value

    passes = Forcing()
    drafts = feed(chain(drafter, K, torch_tap(passes)), *context, 1)
    assert drafts[0] == 7 and passes.stages["drafter.input_ids"][1].tolist() == [7]


def test_d2t_is_an_offset(drafter):
    ids = torch.tensor([0, 5, 39])
    assert drafter.to_target(ids).tolist() == [int(i) + int(drafter.d2t[i]) for i in ids]
    assert drafter.d2t.max() > 0 and drafter.to_target(torch.arange(40)).unique().numel() == 40


@pytest.fixture
def checkpoint(tmp_path, drafter):
    """Writes a checkpoint folder; keywords change config and tensors, None leaves one out."""

    def write(config=(), **tensors) -> Path:
        state = {**drafter.state_dict(), **{name.replace("__", "."): value for name, value in tensors.items()}}
        if "t2d" not in tensors:
            del state["t2d"]
        save_file({name: value for name, value in state.items() if value is not None}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(
            json.dumps({"architectures": ["LlamaForCausalLM"], **RAW, **dict(config)})
        )
        return tmp_path

    return write


def test_a_checkpoint_loads_and_takes_the_targets_embeddings_where_it_has_none(checkpoint, drafter):
    assert torch.equal(Eagle3.load(checkpoint()).fc.weight, drafter.fc.weight)
    shared = torch.randn(90, 48)
    folder = checkpoint(embed_tokens__weight=None)
    assert torch.equal(Eagle3.load(folder, embeddings=shared).embed_tokens.weight, shared)
    with pytest.raises(UsageError, match="do not fit"):
        Eagle3.load(folder, embeddings=torch.randn(90, 20))
    with pytest.raises(UsageError, match=r"embed_tokens\.weight is missing"):
        Eagle3.load(folder)


def test_a_map_with_gaps_is_read_as_offsets(checkpoint):
    assert Eagle3.load(checkpoint(d2t=torch.arange(40))).to_target(torch.arange(40)).tolist() == list(range(0, 80, 2))


@pytest.mark.parametrize("d2t", [torch.arange(40, 0, -1), torch.full((40,), 60), torch.full((40,), -1)])
def test_a_map_that_is_not_one_to_one_into_the_targets_vocabulary_is_refused(checkpoint, d2t):
    with pytest.raises(UsageError, match="d2t"):
        Eagle3.load(checkpoint(d2t=d2t))


def test_a_mask_that_contradicts_the_map_is_refused(checkpoint):
    with pytest.raises(UsageError, match="t2d"):
        Eagle3.load(checkpoint(t2d=torch.ones(90, dtype=torch.bool)))


def test_the_kind_of_drafter_is_read_from_its_config(checkpoint, tiny):
    assert is_chain(checkpoint()) and not is_chain(tiny / "drafter")
    assert not is_chain(checkpoint({"ptd_token_id": 3})) and not is_chain(checkpoint({"pard_token": 3}))
    assert not is_chain(checkpoint({"num_hidden_layers": 4}))


def test_a_config_of_the_first_hub_drafters_reads_as_llamas_plain_rope():
    raw = {key: value for key, value in RAW.items() if key not in ("rope_theta", "head_dim", "eagle_config")}
    config = Eagle3Config.from_dict(raw)
    assert (config.rope["rope_theta"], config.head_dim, config.tap_inputs) == (10000.0, 8, None)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"num_hidden_layers": 2}, "one layer"),
        ({"norm_output": "yes"}, "norm_output"),
        ({"norm_before_fc": True, "fc_norm": True}, "exclude each other"),
        ({"norm_before_fc": False, "eagle_config": {"norm_before_fc": True}}, "norm_before_fc is False and True"),
        ({"num_aux_hidden_states": 4}, "num_aux_hidden_states"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type"),
    ],
)
def test_what_the_reference_does_not_have_is_refused(change, what):
    with pytest.raises(UsageError, match=what):
        Eagle3Config.from_dict(RAW | change)


def test_a_missing_key_is_named():
    with pytest.raises(UsageError, match="draft_vocab_size"):
        Eagle3Config.from_dict({key: value for key, value in RAW.items() if key != "draft_vocab_size"})
