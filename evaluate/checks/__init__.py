"""Rules that a believable result obeys; each returns its findings as lines of text.

Imports `evaluate.inputs`, `evaluate.metrics` and `utils`. Begin with `entries.py`.
"""
