"""The devices whose peak figures are known, and the detection of what this machine computes on.

Imports nothing else of ours. Begin with `devices.py`.
"""
