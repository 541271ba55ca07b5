"""Megatron-core: the model of a spec, its weights, the redirection to the CPU, and the resolved configuration.

Imports `train.common` and `utils`. Begin with `model.py`.
"""
