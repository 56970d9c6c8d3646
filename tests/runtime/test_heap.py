"""Tests of `palaestra.runtime.keep_freed_memory`."""

import os
import platform
import subprocess
import sys

import pytest

from palaestra.runtime import keep_freed_memory

FAULTS = """
import resource, sys, torch
from palaestra.runtime import keep_freed_memory

def steps(count):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        tensors = [torch.empty(size).fill_(1.0) for size in [100_000] * 500]
        while tensors:
            tensors.pop()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / count

if sys.argv[1] == "kept":
    assert keep_freed_memory()
steps(2)
print(steps(10))
"""


def faults_of_a_step(heap: str) -> float:
    defaults = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}  # where glibc starts from
    command = [sys.executable, "-c", FAULTS, heap]
    return float(subprocess.check_output(command, env={**os.environ, **defaults}, text=True, timeout=300))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
@pytest.mark.slow
def test_what_was_freed_is_used_again_without_asking_the_system():
    # Without the setting, the mutant, nearly all 49 thousand pages of a step come from the system again.
    assert faults_of_a_step("kept") < 100
    assert faults_of_a_step("as it is") > 10_000


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", "1.2"))
    assert not keep_freed_memory()
