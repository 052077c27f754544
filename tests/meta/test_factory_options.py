"""Options behind a device's name arrive in the types that its factory's signature asks for."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Optional

import pytest

from parity import device
from parity.device import faults
from parity.errors import UsageError
from parity.factory_options import read_option

if TYPE_CHECKING:
    from parity.seam import Device


def made(
    target: Path,
    drafter: Path,
    k: int,
    precision: str,
    plain=None,
    commit: str = "",
    head: Optional[str] = None,  # noqa: UP045  as users write it
    seed: int = 0,
    default=1,
    flag=False,
    scale: float | None = None,
    either: int | str = 0,
    text: str | int = "",
    folder: Path = Path(),
    kind: Literal["fused", 2] = "fused",
    **more: Any,
) -> Device:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        *[(name, text, text) for name in ("plain", "commit", "head") for text in ("1402502", "1e5", "007", "true")],
        ("more", "1402502", "1402502"),
        *[("seed", "007", 7), ("seed", "-3", -3), ("default", "2", 2)],
        *[("flag", "true", True), ("flag", "0", False), ("flag", "Off", False)],
        *[("scale", "1e5", 1e5), ("scale", "3", 3.0), ("scale", "none", None)],
        *[("either", "12", 12), ("either", "12a", "12a"), ("text", "12", "12")],
        *[("folder", "a/b", Path("a/b")), ("kind", "2", 2), ("kind", "fused", "fused")],
        *[(name, "64", 64) for name in ("max_positions", "batch", "tp")],
    ],
)  # fmt: skip
def test_an_option_has_the_type_that_the_signature_asks_for(option, text, value):
    read = read_option("m:made", made, option, text)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("option", "text", "word"),
    [
        ("seed", "1e5", "a whole number"),
        ("default", "two", "a whole number"),
        ("flag", "maybe", "true or false"),
        ("scale", "wide", "a number or none"),
        ("kind", "split", "fused, 2"),
    ],
)
def test_a_value_that_does_not_fit_is_one_sentence(option, text, word):
    with pytest.raises(UsageError, match=f"--device m:made: {option}={text}: its factory takes {word} there"):
        read_option("m:made", made, option, text)


def bare(target, drafter, k, precision):
    raise NotImplementedError


HERE = "tests.meta.test_factory_options"


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (f"{HERE}:bare,nix=1", f"--device {HERE}:bare,nix=1: its factory takes no nix"),
        ("ml_dtypes:bfloat16", "--device ml_dtypes:bfloat16: a type without a signature is no factory"),
        ("os:path", "--device os:path: a module is no factory"),
        ("os:getcwd", "--device os:getcwd: its factory takes no target"),
        (f"{HERE}:HERE", f"--device {HERE}:HERE: a str is no factory"),
    ],
)
@pytest.mark.parametrize("command", [("check-device",), ("gate", "--only", "batch")])
def test_what_cannot_be_called_so_is_one_sentence_and_wrong_usage(command, device, said, parity, shallow_golden):
    golden = ("--golden", shallow_golden.folder) if command[0] == "gate" else ()
    ended = parity(*command, "--device", device, *golden)
    assert ended.code == 2 and ended.err.startswith(f"parity: {said}") and ended.err.count("\n") == 1, ended


def test_an_annotation_that_only_a_type_checker_can_evaluate_is_read_by_its_words():
    def make(seed: int | None, commit: str, device: Undefined): ...  # noqa: F821

    assert [read_option("m:make", make, name, "1402502") for name in ("seed", "commit", "device")] == [
        *(1402502, "1402502"),
        "1402502",
    ]


def test_the_devices_here_take_ranks_as_a_number_through_every_wrapper():
    for make in (device.load, partial(device.load, engine="xla"), faults.rollback_noop):
        assert read_option("numpy", make, "tp", "2") == 2 and read_option("numpy", make, "moe", "2") == "2"
