"""The settings map: each thing that must be equal, with its key in each framework or the reason why none sets it.

Imports `utils` only. Begin with `row.py`, then `map.py`.
"""
