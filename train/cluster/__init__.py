"""Slurm: the script of a job, Slurm's commands, and following jobs in its queue.

Imports `train.runner`, `train.job` and `utils`. Begin with `script.py`.
"""
