"""Rehearsal of a full-size training step without a device: the job's own code on tensors without data.

Imports `utils` only; train/rehearse.py hands it the build and run functions of a trainer. Begin with `ledger.py` (facts
of a step), then `device.py` (stand-ins), `one_rank.py` (a training), `account.py` (output).
"""
