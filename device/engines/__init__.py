"""Machines that run the kernels; each module offers `NAME`, `array`, `zeros` and `host`."""
