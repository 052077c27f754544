"""The classes of the attack. Apart from the package, so that a device which a module of it offers is not made of all of it."""

from __future__ import annotations

from tests.torture import devices, edits, fields, hostile, kills, shards, writers

CLASSES = {
    module.__name__.rpartition(".")[2]: module.attack
    for module in (fields, shards, edits, hostile, devices, kills, writers)
}
