"""fork_safe_lock: a lock that a forked process finds free, and what it guards whole."""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["fork_safe_lock"]

_locks: weakref.WeakValueDictionary[int, threading.Lock] = weakref.WeakValueDictionary()
_held: list[threading.Lock] = []
_numbers = iter(range(1 << 62))


def fork_safe_lock() -> threading.Lock:
    """A new lock; a thread that forks holds it meanwhile, so that no other thread does.

    A thread that holds one may take only locks made earlier.
    """
    lock = threading.Lock()
    number = next(_numbers)
    if number == 0 and hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_take, after_in_parent=_release, after_in_child=_release)
    _locks[number] = lock
    return lock


def _take() -> None:
    for _, lock in sorted(_locks.items(), key=lambda item: item[0], reverse=True):
        lock.acquire()
        _held.append(lock)


def _release() -> None:
    while _held:
        _held.pop().release()
