"""Each shape of matrix multiplication on a device by itself, against float64."""
