"""The twenty-eighth set: defects that a port of the kernels and the loop meets."""
