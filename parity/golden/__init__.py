"""The golden store: a folder of `manifest.json` and safetensors shards (docs/golden-format.md)."""
