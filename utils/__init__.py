"""Code that at least two of `data`, `train` and `evaluate` share.

It imports nothing of theirs, and no torch at import time. Begin with `settings/config.py` (the settings of a run) and
`results/schema.py` (what a result holds).
"""

import signal
import sys

if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Python looks for a command of ours: until that runs, Ctrl-C ends it without a traceback (utils/arguments.py)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
