"""The merge gate: a kernel against another revision of itself."""
