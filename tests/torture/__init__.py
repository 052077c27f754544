"""The attack on parity as a program of its own: `python -m tests.torture`, `make torture` (docs/torture.md)."""
