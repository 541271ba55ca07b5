"""The result of a job: its schema, its files, and the summary of its step times. Standard library only.

Imports `utils.redact`, `utils.files` and `utils.own_files`. Begin with `schema.py`, then `store.py`.
"""
