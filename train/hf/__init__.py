"""transformers: the model of a spec, and what its Trainer really runs.

Imports `train.common` and `utils`. Begin with `model.py`.
"""
