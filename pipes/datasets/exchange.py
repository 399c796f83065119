"""exchange: two folders change names in one step, so that at no moment one of them is missing."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

__all__ = ["exchange"]

AT_FDCWD = -100
RENAME_EXCHANGE = 2  # of Linux's renameat2
RENAME_SWAP = 2  # of macOS's renamex_np


def exchange(one: Path, two: Path) -> bool:
    """Gives each of two folders the other's name.

    Args:
        one: existing, no symbolic link.
        two: the same, on the same file system.

    Returns:
        Whether that was done. False where the system or the file system cannot do it in one step:
        then nothing has changed.
    """
    if one.is_symlink() or two.is_symlink():
        return False  # the links themselves would be exchanged
    names = os.fsencode(one), os.fsencode(two)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            failed = libc.renamex_np(*names, ctypes.c_uint(RENAME_SWAP))
        else:
            failed = libc.renameat2(
                AT_FDCWD, names[0], AT_FDCWD, names[1], ctypes.c_uint(RENAME_EXCHANGE)
            )
    except (AttributeError, OSError, TypeError):  # there is no such function, or no such library
        return False
    return bool(failed == 0)
