"""One job: its ranks under a watchdog, the step recorder, and its one result, however it ends.

Imports `train.machine` and `utils`. Begin with `job.py`, then `report.py`, `supervise.py` and `outcome.py`.
"""
