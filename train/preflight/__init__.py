"""Checks before a matrix or job starts: disk, memory, missing scripts, other work on the machine.

Imports `train.runner`, `train.machine`, `train.job` and `utils`. Begin with `matrix_checks.py`.
"""
