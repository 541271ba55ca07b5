"""A comparison as text, JSON and picture.

Imports `evaluate.verdict` and what that stands on. Begin with `comparison.py`.
"""
