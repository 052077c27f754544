"""Dumps: folders of `manifest.json` and safetensors shards (docs/golden-format.md), and when a golden may judge.

`writer` makes a folder, `store` opens one; tensors lie in `shards`, `ranks` joins them. `manifest` says what is in it
(its parts: `producer`, `checkpoints`, `case`, of `fields`), `reading` lets it in where it agrees with itself
(`consistent`) and with its tensors (`consistent_tensors`). `views` are what readers take: a dump, a part of one, a
golden that judges. `choice` finds a golden, `trust` opens it to judge by `digests`, `provenance` and `sources`;
`verify` compares it with a second dump of its case.
"""
