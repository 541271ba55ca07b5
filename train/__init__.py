"""Train every job of a matrix and leave one result for each. It imports `utils` only.

Begin with `matrix.py` (all jobs), then `launch.py` (one job), then a trainer such as `train_mega.py`.
"""
