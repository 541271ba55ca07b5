"""Measurement of a device: rates of its libraries, and bandwidth of its memory and of the links between ranks.

Imports `utils` and the packages of `train` below it: machine and job. Begin with `report.py` (the content of the file).
"""
