"""Decode against a paged KV cache: is every kernel right, and is it fast."""

import rooftest


@rooftest.checks(op="paged_decode")
def test_paged_decode(check: rooftest.Check) -> None:
    check()


@rooftest.measures(op="paged_decode")
def test_paged_decode_speed(measurement: rooftest.Measurement) -> None:
    measurement()
