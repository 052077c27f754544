"""The twenty-seventh set: defects that a port of the kernels and the loop meets."""
