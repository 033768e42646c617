"""Results over time: runs are one JSON file each, the truth; Parquet by month beside them makes them quick to ask."""
