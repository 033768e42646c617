"""The harness: a pytest plugin and library that judges and measures GPU kernels."""
