"""The few hot operations, with one contract on every device."""

__all__ = ["compiling", "cpu", "typed"]
