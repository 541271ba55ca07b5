"""The settings: every key with its type and range, the rules between them, and the frozen RunConfig made of them.

Imports `utils.models`, `utils.errors` and `utils.redact`. Begin with `config.py`.
"""
