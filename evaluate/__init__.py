"""Read results, check them, and compare them. It imports `utils` only, and no torch at import time.

Begin with `compare.py` and `validate.py`; `verdict/verdicts.py` decides faster, slower, tie, undecided or not comparable.
"""
