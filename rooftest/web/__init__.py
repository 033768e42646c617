"""A run as one HTML file that needs no network: charts drawn as SVG here, so that a page is small and prints."""
