"""Slurm: the script of a job, and its queue: jobs are submitted and followed there.

Imports `train.runner`, `train.job` and `utils`. Begin with `script.py`.
"""
