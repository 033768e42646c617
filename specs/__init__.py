"""Specifications: one file an op, contract and reference side by side."""
