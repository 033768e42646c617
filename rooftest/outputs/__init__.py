"""What a run tells other programs and GitHub: a comment, annotations, a summary, a CSV file, from its records alone."""
