"""The result of a job: its schema, the files that hold it, and the summary of its step times. Standard library only.

Imports `utils.redact` and `utils.files`. Begin with `schema.py`, then `store.py`.
"""
