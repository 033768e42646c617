"""Attention, backward: is every kernel right, and is it fast."""

import rooftest


@rooftest.checks(op="attention_backward")
def test_attention_backward(check: rooftest.Check) -> None:
    check()


@rooftest.measures(op="attention_backward")
def test_attention_backward_speed(measurement: rooftest.Measurement) -> None:
    measurement()
