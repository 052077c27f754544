"""How much is taken from outside: each limit by name, with its reason. What exceeds one is refused at no cost."""

from __future__ import annotations

MIB = 2**20

MANIFEST_BYTES = 256 * MIB
"""A row takes 280 bytes: 24 prompts of 48 tokens on gpt-oss-120b with both floors are 150 MB."""

RECORD_BYTES = 64 * MIB
"""Results of a cell, indices of other tools' dumps, configs: the largest met are a few MB."""

RESULT_BYTES = 512 * MIB
"""Of a JSON file that holds whole tensors as text."""

TEXT_BYTES = 4 * MIB
"""A policy, map or matrix that a person writes: the largest met has 45 kB."""

CONFIG_BYTES = MIB
"""Of a checkpoint's config.json: the largest met has 40 kB."""

CURVE_BYTES = MIB // 4
"""Of an acceptance curve: the largest met has 2 kB, and YAML is slow to read."""

VALUES = 20_000_000
"""Of one JSON file. A value of two bytes takes 32 parsed: so many stay below 1 GB, and hold a manifest at its limit."""

HEADER_BYTES = 16 * MIB
"""Of a safetensors file, which allows 100 MB: headers of 100,000 tensors are smaller, small values unfold 30-fold."""

SPOOL_HEADER_BYTES = 2**16
"""Of one tensor of a dump under way: its name, dtype, shape and digest."""

UNFOLDED_BYTES = 2**30
"""What one compressed file may unfold to; larger tensors are kept uncompressed, and mapped."""

ARCHIVE_MEMBERS = 100_000
"""Files in one archive; also what a folder of an imported dump may hold."""

DEPTH = 100
"""Containers within containers: 20,000 of them end the interpreter's stack; the deepest met is 12."""

AXES = 8
"""Of one tensor: stages have three, with a batch four; NumPy ends at 64 with an error of its own."""

TENSOR_AXES = 32
"""Of a tensor that is compared with another: NumPy iterates over no more."""

LAYERS = 1_024
"""Of one model; the deepest published decoder has 126."""

PROMPTS = 100_000
PROMPTS_BYTES = 64 * MIB
"""A file of prompts that is looked at before a night."""
"""Of one golden."""

ROUNDS = 1_000_000
"""Of one prompt: a context of a million tokens, a token a round."""

DRAFTS = 1_024
"""K: drafters are made for 8."""

SKETCH = 4_096
"""Numbers of a sketched row, or logits kept of one: a row of gpt-oss has 2,880."""

SCHEDULE = 64
"""Rounds whose K are told in turn."""

LANES = 2**16
"""Sequences that a device runs at once."""

TOKENS = 2**24
"""Ids of one prompt or generation: eight times the longest context met."""

TOKEN = 2**31
"""Ids end below it: devices hold them as int32."""

UNIFORMS_BYTES = 64 * MIB
"""Random numbers of one prompt as text: with K = 16 a budget of 100,000 tokens takes 36 MB."""

RANKS = 4_096
"""Of a tensor-parallel run: there are no more devices in one pod."""

CELLS = 4_096
"""Of one night: at ten seconds a cell that is half a day."""

ROWS = 1_000
"""Rows that a person writes in a policy, a map or a matrix: each of them is tried on every stage, name or cell."""

PATTERN_BYTES = MIB
"""What a compiled pattern of a map may take: nested repeats multiply."""

LINE_BYTES = MIB
"""Of a log: a line that says what ran instead is a sentence."""

HISTORY_ROWS = 4_000_000
"""Of one file of history: a thousand figures a cell. A repeated row costs a file nothing, and memory 200 bytes."""

HISTORY_BYTES = 512 * MIB
"""Of one file of history: a night of 4,096 cells takes 40 MB."""

PAIRED = 4_096
"""Tensors of a dump that are paired by their content: each is compared with every row of the golden."""

PAIRED_ROWS = 2**19
"""Rows of a golden that tensors are paired with, over all stages and rounds: 128 numbers of each are kept, 256 MB."""
