"""Generated text for training without a network: an artificial language and a small tokenizer for it.

Imports `data.reading` and `utils`. Begin with `language.py`.
"""
