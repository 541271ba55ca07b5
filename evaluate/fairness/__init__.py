"""The certificate of a pair: did both sides do the same work under the same conditions?

Imports `evaluate.metrics` and `utils`. Begin with `certificate.py`.
"""
