"""The fifth set, by the part of the pipeline."""
