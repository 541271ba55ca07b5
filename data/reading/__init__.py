"""Readers of text files (lines, JSON records and Parquet rows, compressed or not) and of tokenizers.

Imports `utils` only. Begin with `records.py`.
"""
