"""torchtitan: its trainer with our settings and samples, and its resolved configuration.

Imports `train.common`, `train.settings_map` and `utils`. Begin with `recipe.py`.
"""
