"""The classes of the attack: not in the package's module, or a device of one module would be made of all of them."""

from __future__ import annotations

from tests.torture import devices, edits, fields, hostile, kills, shards, writers

CLASSES = {
    module.__name__.rpartition(".")[2]: module.attack
    for module in (fields, shards, edits, hostile, devices, kills, writers)
}
