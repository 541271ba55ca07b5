"""The floor of a step from a probe by operator, the losses above it, and how much of a pair's ratio is hardware.

Imports `evaluate.metrics`, `evaluate.timing`, `evaluate.verdict` and `utils`. Begin with `parts.py`, then
`attribution.py`.
"""
