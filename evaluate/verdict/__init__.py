"""The verdict on a pair of sides: the choice of pairs, the ratio with its interval, and the word for it.

Imports `evaluate.fairness`, `evaluate.checks`, `evaluate.metrics`, `evaluate.timing` and `utils`. Begin with
`verdicts.py`.
"""
