"""The maths as plain functions over arrays: `numpy` calls only, weights in x@W form, static shapes.

Every array starts with a B axis, and every sequence has its own positions. The dialect is that of
NKIPy (github.com/aws-neuron/nkipy): a kernel does not know which engine it runs on.
"""
