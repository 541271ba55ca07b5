"""Pretends GPUs of platform amd to the suite's own processes, so that a job can be started where there is none.

Python imports this by itself from a folder on PYTHONPATH. Nothing runs on these devices; results call
them pretended.
"""

import os
import sys

if "TPRIMAT_TEST_GPUS" in os.environ:
    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    from utils.hardware import detect as hardware

    def visible_gpus(platform, torch_module=None):
        return int(os.environ["TPRIMAT_TEST_GPUS"])

    def gpu_info(platform, device_count, torch_module=None):
        unknown = ("total_memory_gb", "gpu_cores", "software_version", "driver_version")
        return {
            **dict.fromkeys(unknown),
            "device_name": "pretended device",
            "device_count": device_count,
            "software_stack": "rocm",
            "pytorch_version": "none",
            "reasons": dict.fromkeys(unknown, "pretended"),
        }

    hardware.visible_gpus, hardware.gpu_info = visible_gpus, gpu_info
    sys.path.pop(0)
