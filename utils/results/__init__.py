"""The result of a job: its schema, its files, and the summary of its step times. Standard library only.

Imports `utils.redact` and `utils.files`. Begin with `schema.py`, then `store.py`.
"""
