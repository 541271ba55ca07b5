"""Megatron-core: a spec's model, its layers and fused operations, its weights, the redirection to the CPU, read-back.

Two releases of megatron-core are supported: 0.16.1, the last one on PyPI for Python older than 3.12, and 0.19.2 (the
requirement files). Where they differ, the code looks for a name or a signature, so that no version number decides.

Imports `train.common` and `utils`. Begin with `model.py`.
"""
