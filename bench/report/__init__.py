"""A result of the suite or of a ladder for people: Markdown, plots and one HTML page."""
