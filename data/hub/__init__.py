"""Downloads from the Hugging Face Hub: verified, resumed, retried, with errors in one line.

Imports `utils` only. Begin with `client.py`.
"""
