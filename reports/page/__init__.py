"""A night as a page: one HTML file that opens offline, and its short form in Markdown."""
