"""Kernels of no op: is their machine code what their rows say."""

import rooftest


@rooftest.checks(op="none")
def test_machine_code(check: rooftest.Check) -> None:
    check()
