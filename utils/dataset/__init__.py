"""Encoded training data: the `.bin/.idx` pair, where it lies, and Megatron-core's dataset over it.

Imports `utils.settings`, `utils.provenance` and `utils.housekeeping`. Begin with `indexed.py`.
"""
