"""vLLM as a reference: run in its own environment, recorded step by step, written as a golden (docs/vllm.md)."""
