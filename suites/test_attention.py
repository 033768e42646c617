"""Attention: is every kernel right, and is it fast."""

import rooftest


@rooftest.checks(op="attention")
def test_attention(check: rooftest.Check) -> None:
    check()


@rooftest.measures(op="attention")
def test_attention_speed(measurement: rooftest.Measurement) -> None:
    measurement()
