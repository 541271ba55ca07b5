"""Profiles of some steps of a training with torch.profiler: the recording, its files, and profile.json beside them.

Imports `train.job` and `utils`. Begin with `recording.py`.
"""
