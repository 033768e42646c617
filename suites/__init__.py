"""What `pytest suites/` runs."""
