"""NeMo: its recipe with our settings, the Python that runs it, and what it really runs.

Imports `train.mega`, `train.common`, `train.settings_map` and `utils`. Begin with `recipe.py`.
"""
