"""Train every job of a matrix and leave one result for each. It imports `utils` only.

Begin with `matrix.py` (all jobs), then `launch.py` (one job), then a trainer such as `train_mega.py`.
"""

import signal
import sys

if (
    sys.argv[:1] == ["-m"]
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    and not any(argument.startswith("train.train_") for argument in sys.orig_argv)  # ranks, which their launcher ends
):
    # Python looks for a command of ours: until that runs, Ctrl-C ends it without a traceback (utils/arguments.py)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
