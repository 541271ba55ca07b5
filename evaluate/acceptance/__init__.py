"""Acceptance tests: each job of delivered machines against a baseline, with PASS, FAIL or UNKNOWN.

Imports `evaluate.bundle`, `evaluate.report`, `evaluate.verdict` and what these import. Begin with `deciding.py`.
"""
