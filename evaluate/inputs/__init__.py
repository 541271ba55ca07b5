"""Results of other origins, converted to our schema: logs, MLPerf results, formats of earlier suites.

Imports `utils` only. Begin with `from_log.py`.
"""
