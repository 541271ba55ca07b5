"""The metrics of one result, each with its formula: steady steps, speed, utilisation, memory, energy, cost.

Imports `utils` only. Begin with `metrics.py`; `steady.py` decides which steps count.
"""
