"""Addresses of the job's GPUs, asked of stand-ins of libcuda and libamdhip64 that are compiled here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

from train.energy import gpu_reader

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="the stand-ins of the runtimes need gcc")
CUDA = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* As CUDA: the fast GPU at 9b is device 0 unless CUDA_DEVICE_ORDER=PCI_BUS_ID; CUDA_VISIBLE_DEVICES hides. */
static const char *fast[] = {"0000:9B:00.0", "0000:17:00.0"};
static int order(int device) {
  const char *text = getenv("CUDA_DEVICE_ORDER"), *visible = getenv("CUDA_VISIBLE_DEVICES");
  int place = visible ? atoi(visible) : device;
  return text && !strcmp(text, "PCI_BUS_ID") ? 1 - place : place;
}
int cuInit(unsigned flags) { return getenv("CUDA_BROKEN") ? 999 : 0; }
int cuDeviceGetCount(int *count) { *count = getenv("CUDA_VISIBLE_DEVICES") ? 1 : 2; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetPCIBusId(char *text, int length, int device) {
  snprintf(text, length, "%s", fast[order(device)]); return 0;
}
"""
HIP = """
#include <stdio.h>
int hipGetDeviceCount(int *count) { *count = 2; return 0; }
int hipDeviceGetPCIBusId(char *text, int length, int device) {
  snprintf(text, length, device ? "0000:05:00.0" : "0000:c5:00.0"); return 0;
}
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runtimes")
    for name, source in (("libcuda.so.1", CUDA), ("libamdhip64.so", HIP)):
        (folder / "source.c").write_text(source)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / name, folder / "source.c"], check=True)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("00000000:9B:00.0", "0000:9b:00.0"),
        (b"0000:9b:00.0\0\0", "0000:9b:00.0"),
        ("9b:00.0", "0000:9b:00.0"),
        ("0001:0A:1F.7", "0001:0a:1f.7"),
        ("0A000000:00:00.0", "a000000:00:00.0"),
    ],
)
def test_one_address_is_written_in_one_way(text, wanted):
    assert gpu_reader.normal(text) == wanted


@pytest.mark.parametrize("text", ["", "GPU-0f3c5a52", "0", "0000:9b:00.9", "0000:9b:00"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError, match="wanted a PCI address"):
        gpu_reader.normal(text)


@needs_compiler
@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, ["0000:9b:00.0", "0000:17:00.0"]),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ["0000:17:00.0", "0000:9b:00.0"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["0000:17:00.0"]),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ["0000:9b:00.0"]),
    ],
)
def test_the_order_is_that_of_the_jobs_own_cuda(libraries, variables, wanted):
    assert gpu_reader.bus_ids_of_job("nvd", libraries | variables) == (wanted, "")


@needs_compiler
def test_the_order_is_that_of_hip(libraries):
    assert gpu_reader.bus_ids_of_job("amd", libraries) == (["0000:c5:00.0", "0000:05:00.0"], "")


@needs_compiler
def test_runtime_that_does_not_start_is_a_reason(libraries):
    assert gpu_reader.bus_ids_of_job("nvd", libraries | {"CUDA_BROKEN": "1"}) == (None, "cuInit returned 999")


def test_missing_runtime_is_a_reason(monkeypatch):
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has CUDA")
    bus_ids, why = gpu_reader.bus_ids_of_job("nvd", os.environ)
    assert bus_ids is None and re.search("cannot be loaded .*libcuda", why)
