"""Comparisons of results, as text, JSON, a page and a picture.

Imports `evaluate.verdict` and the packages below it. Begin with `comparison.py`.
"""
