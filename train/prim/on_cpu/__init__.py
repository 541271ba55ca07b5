"""Modules for the ranks of Primus on a machine without a GPU, which find them on their path.

Imports torch only, and `train/mega/cpu.py` by its path. Begin with `sitecustomize.py`.
"""
