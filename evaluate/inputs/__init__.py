"""Results of other origins turned into our schema: logs, MLPerf results, formats of earlier suites.

Imports `utils` only. Begin with `from_log.py`.
"""
