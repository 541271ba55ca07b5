"""The time of a training step by kind, from a trace of torch.profiler, on its own or beside another trace.

Imports `utils` only. Begin with `breakdown.py`; `trace_file.py` reads a trace.
"""
