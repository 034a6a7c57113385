"""Reports of a suite's or a ladder's result for people: Markdown, plots and one HTML page."""
