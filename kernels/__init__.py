"""Kernels under test. They import torch and triton only and know nothing of the tests."""
