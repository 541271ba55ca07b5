"""torchtitan: its trainer with our settings and samples, the Python that runs it, and its resolved configuration.

Imports `train.common`, `train.settings_map` and `utils`. Begin with `recipe.py`, then `loop.py`.
"""
