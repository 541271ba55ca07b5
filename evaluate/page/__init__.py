"""compare.html: one self-contained file, made from Jinja2 templates.

Imports `evaluate.report` and the packages below it. Begin with `page.py` and `templates/page.html`.
"""
