"""Measurement of a device: rates of its libraries, bandwidth of its memory and links, and the data loader.

Imports `utils` and the packages of `train` below it: machine, job and common. Begin with `whole.py` (the content of the
file), then `rates.py`.
"""
