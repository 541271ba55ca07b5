"""Megatron-core: a spec's model, its layers and fused operations, its weights, the redirection to the CPU, read-back.

Imports `train.common` and `utils`. Begin with `model.py`.
"""
