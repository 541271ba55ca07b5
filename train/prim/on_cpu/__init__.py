"""Start-up of the ranks of Primus on a machine without a GPU, which find it on their path.

Imports nothing; runs `train/mega/cpu.py` by its path. Begin with `sitecustomize.py`.
"""
