"""Downloads from the Hugging Face Hub: verified, resumed, retried, with one-line errors.

Imports `data.reading` and `utils`. Begin with `client.py`.
"""
