"""Table of devices with their peak figures, and detection of the devices of this machine.

Imports nothing else of ours. Begin with `devices.py`.
"""
