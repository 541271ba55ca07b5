"""Profiles of some steps of a training: the recordings of each tool, their files, and profile.json beside them.

Imports `train.job` and `utils`. Begin with `recording.py`.
"""
