"""Encoding of JSONL files into a `.bin/.idx` pair, in parts, by several processes or machines, resumed after a kill.

Imports `data.hub`, `data.reading` and `utils`. Begin with `pair.py`.
"""
