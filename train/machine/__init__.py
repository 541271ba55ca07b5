"""The state of this machine and its GPUs, read from the vendors' tools and from Linux. Standard library only.

Imports `utils` only. Begin with `gpus.py`, then `conditions.py`. `shell/gpu.sh` runs `gpu_command.py`.
"""
