"""The suite's own files in OUTPUT_DIR and DATA_DIR: marked, listed, packed and removed; files of others stay.

Imports `utils.settings` and `utils.results`. Begin with `inventory.py`.
"""
