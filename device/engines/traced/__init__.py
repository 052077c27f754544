"""What the `nkipy` and `neuron` engines share: arrays that stay where they run, and programs traced by NKIPy."""
