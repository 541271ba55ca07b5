"""Code that at least two of `data`, `train` and `evaluate` share.

It imports nothing of theirs, and no torch at import time. Begin with `settings/config.py` (the settings of a run) and
`results/schema.py` (what a result holds).
"""
