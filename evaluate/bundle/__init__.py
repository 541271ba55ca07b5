"""Checks of an output.zip: hashes, rules, samples against raw logs, and the comparison made again.

Imports every other package of `evaluate`. Begin with `check.py`.
"""
