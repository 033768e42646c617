"""JSON Schemas of everything that rooftest writes, one file a version."""
