"""Primus: the YAML of a run, Primus as a process in its own checkout, and the result read from its log.

Imports `train.mega`, `train.job`, `train.common`, `train.settings_map` and `utils`. Begin with `training.py`.
"""
