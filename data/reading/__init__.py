"""Readers of text files: lines, JSON records and Parquet rows, compressed or not.

Imports `utils` only. Begin with `records.py`.
"""
