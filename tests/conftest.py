"""What all tests stand on."""

import signal

# A shell starts its background jobs with Ctrl-C ignored, and that is inherited: the programs under test must have it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
