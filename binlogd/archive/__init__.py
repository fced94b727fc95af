"""Sealed segments with an index, in a directory or an object store, and the reading of them."""
