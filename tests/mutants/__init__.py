"""Mutation testing of the core: `python -m tests.mutants`, `make mutants` (docs/torture.md)."""
