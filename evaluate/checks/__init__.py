"""Rules that a believable result obeys; each returns what it found as lines for a person.

Imports `evaluate.inputs`, `evaluate.metrics` and `utils`. Begin with `entries.py`.
"""
