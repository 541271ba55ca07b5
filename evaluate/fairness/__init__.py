"""The certificate of a pair, which shows whether both sides did the same work under the same conditions.

Imports `evaluate.checks`, `evaluate.metrics` and `utils`. Begin with `certificate.py`.
"""
