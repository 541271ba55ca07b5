"""One job: its ranks under a watchdog, the step recorder, and its one result, however it ends.

Imports `utils` only. Begin with `job.py`, then `report.py`, `supervise.py` and `outcome.py`.
"""
