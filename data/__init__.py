"""Prepare training data: fetch, clean, encode and verify text, or generate it. It imports `utils` only.

Begin with `prepare.py`, which runs all steps; each step is also a separate command.
"""
