"""Each operation of a program on a device alone, compared with float64."""
