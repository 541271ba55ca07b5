"""Two engines that encode text into token ids: the reference, and a fast one that gives the same ids.

Imports `utils` only. Begin with `engines.py`; `guard.py` decides which documents the fast engine may encode.
"""
