"""Reader of training logs of all frameworks: log files in, one run with its steps out.

Imports `utils.results`. Begin with `reader.py`.
"""
