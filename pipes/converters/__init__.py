"""Graphs from and to other libraries, each imported only when its graph is to be made."""

from hopline.pipes.converters.dgl import from_dglgraph, to_dglgraph
from hopline.pipes.converters.edge_list import from_edge_list, to_edge_list
from hopline.pipes.converters.networkx import from_networkx, to_networkx
from hopline.pipes.converters.pyg import from_pyg, to_pyg
from hopline.pipes.converters.scipy import from_scipy, to_scipy

__all__ = [
    "from_dglgraph",
    "from_edge_list",
    "from_networkx",
    "from_pyg",
    "from_scipy",
    "to_dglgraph",
    "to_edge_list",
    "to_networkx",
    "to_pyg",
    "to_scipy",
]
