"""Each shape of matrix multiplication on a device alone, compared with float64."""
