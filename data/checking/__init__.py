"""Checks of an encoded pair: digests, token ids, ends of documents, lengths, and samples compared with the text.

Imports `data.reading` and `utils`. Begin with `checks.py`.
"""
