"""The history of the runs of many days: series of comparable runs, their levels, and what changed when a level did.

Imports `evaluate.report` and what stands below it, and `utils`. Begin with `history.py`.
"""
