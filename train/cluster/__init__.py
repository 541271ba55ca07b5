"""Slurm's queue: jobs are submitted and followed there; train/slurm.py writes their scripts.

Imports `train.runner`, `train.job` and `utils`. Begin with `follow.py`.
"""
