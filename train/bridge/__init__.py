"""Megatron-Bridge: its recipe with our settings, and its resolved configuration.

Imports `train.mega`, `train.hf.model`, `train.common`, `train.settings_map` and `utils`. Begin with `recipe.py`.
"""
