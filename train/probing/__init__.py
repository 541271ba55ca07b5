"""Measurement of a device: rates of its libraries, memory, links and loader, and every operator of a job's step.

Imports `utils` and the packages of `train` below it: rehearsal (calls of operators), machine, job and common.
Begin with `whole.py` (the content of the file), then `operators.py` (plan), `replay.py` (one call), `rounds.py`.
"""
