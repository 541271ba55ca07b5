"""One job: its ranks under a watchdog, the step recorder, and the one result that it leaves however it ends.

Imports `utils` only. Begin with `job.py`, then `supervise.py` and `outcome.py`.
"""
