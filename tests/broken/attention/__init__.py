"""Broken attention kernels, by kind of fault."""
