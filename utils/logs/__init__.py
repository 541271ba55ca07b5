"""A reader of training logs of other frameworks: lines in, one run with its steps out.

Imports `utils.results`. Begin with `reader.py`.
"""
