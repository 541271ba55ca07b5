"""The origin of a result: digests of data, weights and code, commit, host, versions and environment variables.

Imports `utils.settings` and `utils.dataset.indexed`. Begin with `origin.py`.
"""
