"""A port's tap: stages by name, logical rows alone, and what the tap returns put back where it came from."""

from __future__ import annotations

import numpy as np
import pytest

from parity.adapters import FixedWidth, Hooked, PortTap, Shows, hook_modules
from parity.errors import UsageError


class Recording:
    """Keeps what it is shown; returns it plus `plus`."""

    def __init__(self, plus: float = 0):
        self.seen: dict[str, np.ndarray] = {}
        self.plus = plus

    def __call__(self, stage, value):
        assert stage not in self.seen, stage
        self.seen[stage] = value.copy()
        return value + np.asarray(self.plus, value.dtype) if self.plus else value


@pytest.fixture
def port():
    return PortTap(num_layers=3, num_drafter_layers=2)


def rows(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_between_verbs_nothing_is_handed_over(port):
    x = rows(2, 4)
    assert port("target.embed", x) is x


def test_a_tap_that_returns_its_argument_changes_nothing_at_all(port):
    x = rows(1, 2, 4)
    with port.during(Recording(), "prefill"):
        assert port("target.embed", x) is x


@pytest.mark.parametrize("given", [(4, 4), (1, 4, 4)])
def test_batch_axis_and_padding_go_and_come_back(port, given):
    tap, x = Recording(plus=1), rows(*given)
    with port.during(tap, "prefill", {"target.*": 3}):
        taken = port("target.embed", x)
    assert np.array_equal(tap.seen["target.embed"], rows(4, 4)[:3])
    assert taken.shape == given and x[..., 0, 0] == 0
    assert (taken - x).reshape(4, 4).tolist() == [[1.0] * 4] * 3 + [[0.0] * 4]


def test_a_slice_of_rows_and_another_order_of_axes(port):
    tap, heads_first = Recording(plus=1), rows(2, 3, 5, 4)  # B G S D
    with port.during(tap, "prefill", {"k": slice(1, 3)}):
        taken = port("target.layers.1.k", heads_first, axes="B G S D")
    assert np.array_equal(tap.seen["target.layers.1.k"], heads_first[0, :, 1:3].transpose(1, 0, 2))
    changed = taken - heads_first
    assert changed[0, :, 1:3].min() == 1 and changed.sum() == 3 * 2 * 4


def test_the_first_glob_that_matches_says_which_rows(port):
    tap = Recording()
    with port.during(tap, "round", {"drafter.logits": slice(1, 3), "drafter.*": 3}):
        port("drafter.logits", rows(1, 4, 6))
        port("drafter.fc_out", rows(1, 4, 4))
    assert len(tap.seen["drafter.logits"]) == 2 and len(tap.seen["drafter.fc_out"]) == 3


def test_layers_are_counted_by_launch_and_from_0_in_each_pass(port):
    tap, layer = Recording(), port.launch(lambda x: x + 1, returns="target.layers.{l}.out")
    with port.during(tap, "prefill"):
        x = layer(layer(layer(rows(2, 4))))
        port.begin()
        tap.seen.clear()
        layer(x)
    assert list(tap.seen) == ["target.layers.0.out"]


def test_kernels_of_two_kinds_count_the_same_layers(port):
    tap = Recording()
    sliding, full = (port.launch(lambda x: x, returns="target.layers.{l}.out") for _ in range(2))
    with port.during(tap, "prefill"):
        full(sliding(full(rows(2, 4))))
        assert list(tap.seen) == [f"target.layers.{number}.out" for number in range(3)]
        with pytest.raises(UsageError, match=r"came as 'target\.layers\.3\.out', which is no stage of this pair"):
            full(rows(2, 4))


def test_a_layer_may_come_from_the_arguments(port):
    tap = Recording()
    layer = port.launch(lambda x, number: x, returns=Shows("target.layers.{l}.out", layer=lambda x, number: number))
    with port.during(tap, "prefill"):
        layer(rows(2, 4), 2)
    assert list(tap.seen) == ["target.layers.2.out"]


def test_nobody_watches_a_warm_up(port):
    tap = Recording()
    with port.during(tap, "prefill"):
        with port.during(None, "prefill"):
            port("target.embed", rows(2, 4))
        assert not tap.seen


def test_a_verb_within_a_verb_leaves_the_outer_ones_pass(port):
    outer, inner = Recording(), Recording()
    with port.during(outer, "round", {"embed": 1}, head="verify"):
        port("target.layers.{l}.out", rows(2, 4))
        with port.during(inner, "prefill", {"embed": 2}):
            port("target.layers.{l}.out", rows(2, 4))
        port("target.layers.{l}.out", rows(2, 4))
        port("target.embed", rows(2, 4))
        port("{head}.logits", rows(2, 4))
    assert list(outer.seen) == ["target.layers.0.out", "target.layers.1.out", "target.embed", "verify.logits"]
    assert len(outer.seen["target.embed"]) == 1 and list(inner.seen) == ["target.layers.0.out"]


def test_a_stage_of_the_other_kind_of_round_is_not_handed_over(port):
    tap = Recording()
    with port.during(tap, "prefill"):
        port("drafter.logits", rows(1, 4, 6))
        port("target.logits", rows(1, 4, 6))
    assert list(tap.seen) == ["target.logits"]


def test_a_function_that_is_launched_for_more_than_the_stage(port):
    tap = Recording()
    embed = port.launch(
        lambda ids, table: ids, returns=Shows("target.embed", only=lambda ids, table: table == "target")
    )
    with port.during(tap, "prefill"):
        embed(rows(2, 4), table="drafter")
        embed(rows(2, 4), "target")
    assert list(tap.seen) == ["target.embed"]


def test_other_fields_of_a_name_are_the_passs(port):
    tap, head = Recording(), port.launch(lambda x: x, returns="{head}.logits")
    with port.during(tap, "round", head="verify"):
        head(rows(2, 4))
        port.begin()
        with pytest.raises(UsageError, match="this pass has no field 'head'"):
            head(rows(2, 4))
    assert list(tap.seen) == ["verify.logits"]


def test_one_of_several_returned_values(port):
    tap = Recording(plus=1)
    layer = port.launch(lambda x: (x, "cache"), returns={0: "target.layers.{l}.out"})
    with port.during(tap, "prefill"):
        out, cache = layer(rows(2, 4))
    assert cache == "cache" and out.sum() == rows(2, 4).sum() + 8
    with port.during(tap, "prefill"), pytest.raises(UsageError, match="value 2 of 2 returned ones"):
        port.launch(lambda x: (x, x), returns={2: "target.embed"})(rows(2, 4))


def test_what_a_function_takes_is_replaced_before_it_runs(port):
    fuse = port.launch(lambda taps, scale: taps * scale, takes={"taps": "drafter.taps"})
    with port.during(Recording(plus=1), "prefill"):
        assert fuse(rows(1, 3), scale=10).tolist() == [[10, 20, 30]]
        port.begin()
    assert fuse(rows(1, 3), scale=10).tolist() == [[0, 10, 20]]


def test_what_a_kernel_writes_in_place_is_read_behind_it_and_written_over(port):
    def kernel(inputs, outputs):
        outputs["output0"][...] = inputs["x"] * 2

    tap, hidden = Recording(plus=1), rows(1, 2, 4)
    launched = port.launch(
        kernel,
        takes={"inputs.x": "target.embed"},
        writes={"outputs.output0": "target.layers.{l}.out"},
    )
    inputs = {"x": hidden}
    with port.during(tap, "prefill"):
        launched(inputs=inputs, outputs={"output0": hidden})
    assert inputs["x"] is hidden
    assert np.array_equal(tap.seen["target.layers.0.out"], (rows(2, 4) + 1) * 2)
    assert np.array_equal(hidden[0], (rows(2, 4) + 1) * 2 + 1)


class Layers:
    """A port's module: a namespace of functions."""

    @staticmethod
    def layer(x):
        return x + 1


class Block:
    """A module whose call is its maths, as flax and nnx write them."""

    def __call__(self, x):
        return x + 1


def test_a_module_is_what_it_was_between_verbs(port):
    original, other = Layers.layer, PortTap(3, 2)
    tap, others = Recording(), Recording()
    for each in (port, other):
        each.at(Layers, "layer", returns="target.layers.{l}.out")
    with port.during(tap, "prefill"):
        Layers.layer(rows(2, 4))
    with other.during(others, "prefill"):
        Layers.layer(rows(2, 4))
    assert Layers.layer is original and list(tap.seen) == list(others.seen) == ["target.layers.0.out"]


def test_a_class_may_be_called_through_the_tap_and_an_instance_too(port):
    tap, block = Recording(plus=1), Block()
    port.at(Block, "__call__", returns="target.layers.{l}.out")
    with port.during(tap, "prefill"):
        assert block(rows(1, 1)) == 2
    assert block(rows(1, 1)) == 1 and list(tap.seen) == ["target.layers.0.out"]
    with pytest.raises(UsageError, match="named twice"):
        port.at(Block, "__call__", returns="target.embed")


def test_a_name_that_is_no_stage_is_refused_when_it_is_given(port):
    with pytest.raises(UsageError, match=r"'target\.layers\.\{l\}\.put' is no stage"):
        port.launch(len, returns="target.layers.{l}.put")


def test_an_argument_that_is_not_there_is_refused(port):
    with port.during(Recording(), "prefill"), pytest.raises(UsageError, match="'y' was to be tapped"):
        port.launch(lambda x: x, takes={"y": "target.embed"})(rows(2, 4))


def test_a_tensor_of_other_axes_is_refused(port):
    with port.during(Recording(), "prefill", {"embed": 3}):
        with pytest.raises(UsageError, match=r"target.embed came with shape \[4\]"):
            port("target.embed", rows(4))
        with pytest.raises(UsageError, match=r"target\.embed has 2 rows, 3 are logical"):
            port("target.embed", rows(2, 4))


def test_a_tap_that_returns_another_shape_is_refused(port):
    with port.during(lambda stage, value: value[:1], "prefill"), pytest.raises(UsageError, match="returned shape"):
        port("target.embed", rows(2, 4))


def test_a_tap_that_writes_into_what_it_is_given_is_followed(port):
    def tap(stage, value):
        value[...] = 7
        return value

    with port.during(tap, "prefill"):
        assert port("target.embed", rows(2, 4)).min() == 7


def test_integers_are_handed_over_as_int64_and_come_back_as_they_were(port):
    tap = Recording(plus=1)
    with port.during(tap, "round"):
        taken = port("drafter.draft_tokens", np.array([[3, 4]], np.uint32))
    assert tap.seen["drafter.draft_tokens"].dtype == np.int64
    assert taken.dtype == np.uint32 and taken.tolist() == [[4, 5]]


def test_caches_are_handed_over_up_to_their_length(port):
    tap, cache = Recording(plus=1), [(rows(1, 5, 2, 3), rows(1, 5, 2, 3)) for _ in range(2)]
    with port.during(tap, "prefill", {"*": 1}):
        cache = port.caches("drafter", cache, length=4)
    assert tap.seen["kv.drafter.length"].tolist() == [4] and tap.seen["kv.drafter.1.v"].shape == (4, 2, 3)
    assert (cache[1][1] - rows(1, 5, 2, 3)).sum() == 4 * 2 * 3


def test_hooks_by_a_table_of_names(port):
    torch = pytest.importorskip("torch")
    model = torch.nn.ModuleDict(
        {"embed": torch.nn.Embedding(5, 4), "layers": torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))}
    ).bfloat16()
    tap = Recording()
    hook_modules(
        port,
        model,
        {
            "embed": "target.embed",
            "layers.{l}": "target.layers.{l}.out",
            "layers.1": Hooked("target.layers.1.attn_in", takes=True),
        },
    )

    def forward():
        x = model["embed"](torch.tensor([[1, 2]]))
        for layer in model["layers"]:
            x = layer(x)
        return x

    plain = forward()
    with port.during(tap, "prefill"):
        assert torch.equal(forward(), plain)
    assert sorted(tap.seen) == ["target.embed", "target.layers.0.out", "target.layers.1.attn_in", *[
        f"target.layers.{number}.out" for number in (1, 2)
    ]]  # fmt: skip
    assert np.array_equal(tap.seen["target.layers.1.attn_in"], tap.seen["target.layers.0.out"])
    with port.during(Recording(plus=1), "prefill"):
        assert not torch.equal(forward(), plain)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [({"layers.{l}.mlp": "target.embed"}, "is no module"), ({"0": "target.logit"}, "is no stage")],
)
def test_a_table_that_names_nothing_is_refused(port, table, sentence):
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError, match=sentence):
        hook_modules(port, torch.nn.Sequential(torch.nn.Linear(1, 1)), table)


def test_a_kernel_of_fixed_width_takes_any_number_of_rows():
    width, calls = FixedWidth(4), []

    def kernel(ids, positions, cache):
        calls.append((ids.tolist(), positions.tolist()))
        return ids * 10, cache

    launched = width.launch(kernel, pads={"ids": 0, "positions": -1})
    out, cache = launched(ids=np.array([1, 2]), positions=np.array([5, 6]), cache="all")
    assert out.tolist() == [10, 20] and cache == "all" and calls == [([1, 2, 0, 0], [5, 6, -1, -1])]
    with pytest.raises(UsageError, match="5 rows are more than the 4"):
        launched(ids=np.arange(5), positions=np.arange(5), cache="")
    with pytest.raises(UsageError, match="the rows of one pass"):
        launched(ids=np.arange(2), positions=np.arange(3), cache="")


def test_no_row_of_a_fixed_width_is_without_a_key():
    seen = FixedWidth(4).mask([3, 4], keys=6, window=2)
    assert [np.flatnonzero(row).tolist() for row in seen] == [[2, 3], [3, 4], [0], [0]]


def test_a_jitted_jax_function_goes_on_with_what_the_tap_returns(port):
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    tap = Recording(plus=1)
    layer = port.launch(jax.jit(lambda x, scale: (x * scale, x)), returns="target.layers.{l}.out")
    with port.during(tap, "prefill", {"*": 2}):
        out, kept = layer(jnp.ones((1, 3, 4), jnp.bfloat16), scale=2)
    assert tap.seen["target.layers.0.out"].dtype.name == "bfloat16" and kept.sum() == 12
    assert isinstance(out, jax.Array) and out.dtype == jnp.bfloat16
    assert out[0].astype(int).tolist() == [[3] * 4, [3] * 4, [2] * 4]


def test_inside_of_a_jitted_function_there_is_nothing_to_hand_over(port):
    jax = pytest.importorskip("jax")
    layer = port.launch(lambda x: x * 2, returns="target.layers.{l}.out")
    with port.during(Recording(), "prefill"), pytest.raises(UsageError, match="tap the jitted function"):
        jax.jit(lambda x: layer(x))(np.ones((2, 4), np.float32))
