"""The parts of the command `evaluate.compare`: its options, and the files that it writes.

Imports every other package of this room, and `utils`. Begin with `writing.py`.
"""
