"""Checks of an output.zip: hashes, rules, and every figure recalculated from raw logs and results.

Imports every other package of `evaluate`. Begin with `check.py`.
"""
