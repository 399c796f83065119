"""Cut a graph in parts; serve and sample the parts across ranks."""

__all__: list[str] = []
