"""The site: `make site` builds these pages into build/site/html (Sphinx, MyST, Furo)."""

project = "parity"
author = "the parity authors"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "parity"
html_copy_source = False
html_show_sphinx = False
exclude_patterns = ["ports", "workflows"]  # programs and examples, linked as files
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # generated pages begin their sections deeper
highlight_language = "none"
