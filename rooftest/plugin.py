"""The pytest plugin (entry point `rooftest`)."""
