"""An estimate of the memory that a job needs on one device, term by term. Standard library only.

Imports `utils.settings` and `utils.models`. Begin with `estimate.py`.
"""
