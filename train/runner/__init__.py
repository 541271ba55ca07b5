"""The matrix of jobs: the plan, one job after another, the state and its view on a terminal.

Imports `train.job` and `utils`. Begin with `plan.py`, then `run_job.py`.
"""
