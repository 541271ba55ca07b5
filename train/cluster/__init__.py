"""Slurm: the script of a job, Slurm's commands, and jobs in its queue followed to their end.

Imports `train.runner`, `train.job` and `utils`. Begin with `script.py`.
"""
