"""The history of the runs of many days: series of comparable runs, their levels, and what changed when a level did.

Imports `evaluate.report`, `evaluate.page` and what stands below them, and `utils`. Begin with `history.py`.
"""
