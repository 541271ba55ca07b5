"""transformers: the model of a spec, its sharding, and the resolved configuration of its Trainer.

Imports `train.common` and `utils`. Begin with `model.py`.
"""
