"""GEMM: is every kernel right, and is it fast."""

import rooftest


@rooftest.checks(op="gemm")
def test_gemm(check: rooftest.Check) -> None:
    check()


@rooftest.measures(op="gemm")
def test_gemm_speed(measurement: rooftest.Measurement) -> None:
    measurement()
