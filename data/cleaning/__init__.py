"""Cleaning of text: the rules, the steps on one text, and the cleaned text of a data set as one JSONL file.

Imports `data.reading`, `data.hub` and `utils`. Begin with `documents.py`.
"""
