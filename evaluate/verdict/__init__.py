"""The verdict on a pair of sides: which results form a pair, the ratio with its interval, and the word.

Imports `evaluate.fairness`, `evaluate.checks`, `evaluate.metrics` and `utils`. Begin with `verdicts.py`.
"""
