"""The attack on parity as a program of its own: `python -m tests.torture`, `make torture` (docs/torture.md)."""

from __future__ import annotations

from tests.torture import devices, edits, fields, hostile, kills, shards, writers

CLASSES = {module.__name__.rpartition(".")[2]: module.attack for module in (fields, shards, edits, hostile, devices, kills, writers)}
