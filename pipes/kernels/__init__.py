"""The few hot operations, with one contract on every device: on the CPU here, on GPUs in `cuda`.

`cuda` is not imported with the others: it needs Triton.
"""

__all__ = [
    "cache",
    "cache_rows",
    "compiling",
    "cpu",
    "disk",
    "dispatch",
    "draws",
    "edges",
    "ranks",
    "relabel",
    "smallest",
    "sorting",
    "typed",
]
