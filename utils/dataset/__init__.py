"""Encoded training data: the `.bin/.idx` pair, its path, and Megatron-core's dataset over it.

Imports `utils.settings`, `utils.results`, `utils.provenance` and `utils.housekeeping`. Begin with `indexed.py`.
"""
