"""The few hot operations, with one contract on every device."""

__all__ = ["cache", "cache_rows", "compiling", "cpu", "disk", "edges", "typed"]
