"""Devices of XLA for tensor-parallel ranks: a CPU counts as several."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import jax

from parity.errors import UsageError

FLAGS: Any = jax.config
"""JAX's flags are attributes that its class does not declare."""


def several() -> None:
    """A CPU as eight devices, so that ranks find one each; they share its threads, and one alone is as fast.

    Nothing is changed where the number was chosen, or where JAX runs already.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "") or FLAGS.jax_num_cpu_devices > 0:
        return
    with suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", 8)


def one_each(devices: Sequence[jax.Device], ranks: int) -> list[jax.Device]:
    """The first of these devices, one for each rank.

    Raises:
        UsageError: there are fewer.
    """
    if len(devices) < ranks:
        flag = f"XLA_FLAGS=--xla_force_host_platform_device_count={ranks} makes a CPU as many"
        raise UsageError(f"tp: {ranks} ranks need as many devices, and XLA has {len(devices)}; {flag}.")
    return list(devices[:ranks])
