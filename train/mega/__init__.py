"""Megatron-core: the model of a spec, its weights, the redirection to the CPU, and what it really runs.

Imports `train.common` and `utils`. Begin with `model.py`.
"""
