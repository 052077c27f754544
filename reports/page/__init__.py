"""A night as one HTML page or as Markdown: views (night, cells, past) made from records, then drawn and rendered.

Drawings: pipeline, heatmap, plots; text: figures, markdown; render fills the templates.
"""
