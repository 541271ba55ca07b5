"""compare.html: one self-contained file.

Imports `evaluate.report` and what that stands on. Begin with `page.py`.
"""
