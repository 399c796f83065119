"""usable_memory: the machine's, or the lowest bound of the control groups around the process."""

from __future__ import annotations

import mmap
import os
import sys

import numpy as np
import pytest
import torch

from hopline.pipes import npy, usable_memory
from hopline.pipes.npy import read_npy

MACHINE = 8 << 30


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Folders in place of the system's; a function that says which groups the process is in."""
    monkeypatch.setattr(usable_memory, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(usable_memory, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": MACHINE // 4096}.get)

    def write(membership: str, **bounds: str) -> None:
        (tmp_path / "membership").write_text(membership)
        for name, value in bounds.items():
            path = tmp_path / "cgroup" / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(value)

    return write


def test_no_groups(groups):
    assert usable_memory.usable_memory() == MACHINE


def test_version_2(groups):
    groups("0::/a/b\n", a__b__memory_dot_max="max\n", a__memory_dot_max=f"{1 << 30}\n")
    assert usable_memory.usable_memory() == 1 << 30  # of the group around


def test_version_1(groups):
    groups(
        "9:cpu,cpuacct:/x\n7:memory:/x\n1:name=systemd:/\n",
        memory__x__memory_dot_limit_in_bytes="500\n",
        memory__memory_dot_limit_in_bytes=f"{(1 << 63) - 4096}\n",
    )
    assert usable_memory.usable_memory() == 500


def test_groups_that_are_not_there(groups):
    groups("0::/gone\n7:memory:/gone\n")
    assert usable_memory.usable_memory() == MACHINE


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such names")
def test_a_group_whose_name_is_of_any_bytes(groups, tmp_path):
    """A name that is no text, with what some take for the end of a line."""
    groups("", a__memory_dot_max=f"{1 << 30}\n")
    name = b"b\xff\xc2\x85\x0b"
    inner = os.path.join(os.fsencode(tmp_path), b"cgroup", b"a", name)
    os.mkdir(inner)
    with open(os.path.join(inner, b"memory.max"), "w", encoding="ascii") as file:
        file.write("700\n")
    (tmp_path / "membership").write_bytes(b"0::/a/" + name + b"\n")
    assert usable_memory.usable_memory() == 700


@pytest.mark.parametrize("known", [True, False])
def test_this_machine(known, monkeypatch):
    if not known:
        monkeypatch.delattr(os, "sysconf")
        assert usable_memory.usable_memory() == (1 << 63) - 1
    assert usable_memory.usable_memory() > 1 << 20


@pytest.mark.skipif(not hasattr(mmap, "MADV_RANDOM"), reason="this system takes no such advice")
def test_files_that_memory_cannot_hold_are_mapped_without_reading_ahead(tmp_path, monkeypatch):
    array = np.arange(1 << 14)
    np.save(tmp_path / "x.npy", array)
    advice = []

    class Spy(mmap.mmap):
        def madvise(self, option):
            advice.append(option)
            super().madvise(option)

    monkeypatch.setattr(mmap, "mmap", Spy)
    for usable, wanted in ((4 * array.nbytes, []), (array.nbytes, [mmap.MADV_RANDOM])):
        monkeypatch.setattr(npy, "usable_memory", lambda usable=usable: usable)
        assert torch.equal(read_npy(tmp_path / "x.npy"), torch.from_numpy(array))
        assert advice == wanted
