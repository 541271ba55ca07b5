"""Results as tables for pandas: a row for each run or for each step, and their CSV and Parquet files.

Imports `evaluate.checks`, `evaluate.metrics` and `utils`; pandas and pyarrow only inside functions, so that a
comparison without these formats does not load them. Begin with `tables.py`.
"""
