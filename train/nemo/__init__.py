"""NeMo: its recipe with our settings, and its resolved configuration.

Imports `train.mega`, `train.common`, `train.settings_map` and `utils`. Begin with `recipe.py`.
"""
