"""Dumps: folders of `manifest.json` and safetensors shards (docs/golden-format.md), and when a golden may judge.

`store` writes and reads a folder, `manifest` says what is in it, `consistent` whether that agrees with itself; `views`
are what readers take: a dump, a part of one, a golden that judges. `choice` finds a golden, `trust` opens it to judge
by `digests`, `provenance` and `sources`; `verify` compares it with a second dump of its case.
"""
