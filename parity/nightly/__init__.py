"""The matrix by night: cells, what each found, and the folder that keeps it."""
