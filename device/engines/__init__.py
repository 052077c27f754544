"""Machines that run the kernels.

Each module offers `NAME`, `array`, `zeros` and `host`, or `engine()` that gives an object with these. What compiles
may offer `versions` (package to version), `notes()` (what else a reader of its runs must know) and
`interpret()` (from now on, no kernel is compiled). An engine that knows its own way to several ranks offers
`spread(sharding)`; with ranks there are `sharding`, `shard` and `hosts` beside the others (`parity.device.engines.ranks`).
"""
