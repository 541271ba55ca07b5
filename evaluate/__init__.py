"""Read results, check them, and compare them. It imports `utils` only, and no torch at import time.

Begin with `compare.py` and `validate.py`; `verdict/verdicts.py` gives each pair its word.
"""
