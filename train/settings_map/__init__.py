"""The settings map: each thing that must be equal, and what each framework calls it or why it cannot be set.

Imports `utils` only. Begin with `row.py`, then `map.py`.
"""
