"""Read results, check them, and compare them. It imports `utils` only, and no torch at import time.

Begin with `compare.py` and `validate.py`; `verdict/verdicts.py` gives each pair its word.
"""

import signal
import sys

if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Python looks for a command of ours: until that runs, Ctrl-C ends it without a traceback (utils/arguments.py)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
