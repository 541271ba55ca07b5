"""Code that the trainers share: command line, recorder, data loading and equal initial weights.

Imports `train.job` and `utils`. Begin with `trainer.py`; `built.py` checks what a framework has built.
"""
