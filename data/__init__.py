"""Prepare training data: fetch, clean, encode and verify text, or generate it. It imports `utils` only.

Begin with `prepare.py`, which runs all steps; each step is also a separate command.
"""

import signal
import sys

if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Python looks for a command of ours: until that runs, Ctrl-C ends it without a traceback (utils/arguments.py)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
