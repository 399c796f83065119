"""The `hopline` command, with what is about parts: `partition`, `inspect` and `launch`."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hopline.partition.assign import METHODS, Parts, estimate_memory
from hopline.partition.assignment_files import read_assignment
from hopline.partition.distdgl import DistDGLDataset, load_distdgl
from hopline.partition.launch_command import NO_SCRIPT, launch_command, split_script
from hopline.partition.part import load_partition
from hopline.partition.verify import verify_partition
from hopline.partition.write import partition_graph
from hopline.pipes import cli
from hopline.pipes.checks import check_count
from hopline.pipes.datasets.builtin import BuiltinDataset
from hopline.pipes.datasets.disk_space import show_bytes
from hopline.pipes.datasets.ondisk import OnDiskDataset
from hopline.pipes.items import HeteroItemSet

__all__ = ["main"]

WIDTH = 50  # characters of the longest bar


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command of `hopline`; as `hopline.pipes.cli.main`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    own, script = split_script(words)
    if own[:1] == ["launch"] and "--" not in words and not {"-h", "--help"}.intersection(own):
        # argparse would say that it does not know the script's name.
        print(f"hopline: error: {NO_SCRIPT}", file=sys.stderr)
        return 1
    return cli.main(own, (*cli.COMMANDS, *COMMANDS, launch_command(script)))


def _add_partition_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dir",
        metavar="DIR",
        help="folder with metadata.yaml, the name of a built-in data set, or the .json file of a "
        "graph that DistDGL has cut, whose parts are kept",
    )
    parser.add_argument(
        "--parts", type=int, metavar="N", help="number of parts (needed but for a .json file)"
    )
    parser.add_argument(
        "--out", metavar="DIR", help="the new folder (default: DIR/partition-N, or ./NAME-N)"
    )
    parser.add_argument("--method", choices=METHODS, help="how nodes are assigned (default: metis)")
    parser.add_argument(
        "--assignment",
        metavar="PATH",
        help="take each node's part from there: a folder with NODE_TYPE.txt (a part a line) or "
        ".npy files, or one such file",
    )
    parser.add_argument(
        "--hops", type=int, default=1, metavar="N", help="hops of halo (default: 1)"
    )
    parser.add_argument(
        "--balance-training",
        action="store_true",
        help="give each part its share of the nodes that the first task trains on",
    )
    parser.add_argument(
        "--balance-edges", action="store_true", help="give each part its share of the edges"
    )
    parser.add_argument(
        "--eps",
        type=float,
        default=0.1,
        metavar="X",
        help="how far above the mean a part may be, of what is balanced (default: 0.1)",
    )
    parser.add_argument("--trainers", type=int, default=1, metavar="N", help="ranks for each part")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the assignment")
    parser.add_argument(
        "--max-memory",
        type=cli.parse_memory,
        metavar="SIZE",
        help="refuse a method that would take more, e.g. 8GB (default: what the system has)",
    )
    parser.add_argument("--force", action="store_true", help="replace an earlier partition")
    parser.add_argument(
        "--verify", action="store_true", help="read the parts again and compare them with DIR"
    )


def _partition(options: argparse.Namespace) -> None:
    path = Path(options.dir)
    dataset: Any
    if path.suffix != ".json" and options.parts is None:
        raise ValueError("the number of parts is missing; expected --parts N")
    if options.parts is not None:
        check_count(options.parts, "num_parts", 1)
    if path.suffix == ".json":
        dataset = load_distdgl(path)
        if options.parts not in (None, dataset.num_parts) or options.method or options.assignment:
            raise ValueError(
                f"{path} has {dataset.num_parts} parts, which are kept; leave out --parts, "
                "--method and --assignment"
            )
        options.parts = dataset.num_parts
        out = path.parent / f"partition-{options.parts}"
    elif path.exists() or "/" in options.dir:
        dataset = OnDiskDataset(path).load()
        out = path / f"partition-{options.parts}"
    else:
        dataset = BuiltinDataset(options.dir).load()
        out = Path(f"{options.dir}-{options.parts}")
    out = Path(options.out) if options.out else out
    method = _method(options, dataset)
    name = method if isinstance(method, str) else "given"
    estimate = estimate_memory(dataset.graph, name)
    print(f"{dataset.graph}", flush=True)
    print(f"{name} takes up to {show_bytes(estimate)} beside the graph", flush=True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        partition_graph(
            dataset,
            dataset.dataset_name or path.name,
            options.parts,
            out,
            options.hops,
            method,
            balance_ntypes=_training(dataset) if options.balance_training else None,
            balance_edges=options.balance_edges,
            num_trainers_per_machine=options.trainers,
            eps=options.eps,
            seed=options.seed,
            max_memory=options.max_memory,
            overwrite=options.force,
        )
    for each in told:
        print(f"warning: {each.message}")
    _show(out)
    if options.verify:
        verify_partition(out, dataset)
        print("verified: the parts hold the data set")
    print(out)


def _method(options: argparse.Namespace, dataset: Any) -> str | Parts:
    """What `partition_graph` is to assign nodes by."""
    given: Parts | None = None
    if isinstance(dataset, DistDGLDataset):
        given = dataset.parts
    elif options.assignment:
        if options.method:
            raise ValueError("--method and --assignment exclude one another; leave out one")
        given = read_assignment(options.assignment, dataset.graph)
        pieces = given.values() if isinstance(given, dict) else [given]
        most = max((int(piece.max()) for piece in pieces if len(piece)), default=0)
        if most >= options.parts:
            raise ValueError(
                f"{options.assignment}: has part {most}; expected 0 to {options.parts - 1}: give "
                f"--parts {most + 1}"
            )
    if given is None:
        return options.method or "metis"
    if options.balance_training or options.balance_edges:
        raise ValueError("parts that are given are not moved; leave out --balance-...")
    return given


def _training(dataset: Any) -> Any:
    """Marks of the nodes that the first task trains on, as `balance_ntypes` takes them."""
    items = dataset.tasks[0].train_set if dataset.tasks else None
    if items is None:
        raise ValueError("the data set has no task with a training set; leave out the balance")
    sets = items.itemsets if isinstance(items, HeteroItemSet) else {"": items}
    numbers = dataset.graph.num_nodes
    marks = {}
    for kind, part in sets.items():
        if part.names is None or "seeds" not in part.names:
            raise ValueError("the training set has no seeds; leave out --balance-training")
        columns = part[:] if isinstance(part[:], tuple) else (part[:],)
        seeds = columns[part.names.index("seeds")]
        if seeds.dim() != 1:
            raise ValueError("the task trains on edges, not nodes; use --balance-edges instead")
        mark = torch.zeros(numbers[kind] if kind else numbers, dtype=torch.bool)
        mark[seeds.long()] = True
        marks[kind] = mark
    return marks.get("", marks)


def _add_inspect_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="folder that `hopline partition` wrote")


def _inspect(options: argparse.Namespace) -> None:
    _show(Path(options.dir))


def _show(folder: Path) -> None:
    """Prints what a partition is like."""
    manifest = load_partition(folder)
    quality = manifest.measured()
    print(
        f"{manifest.graph_name}: {manifest.num_parts} parts by {manifest.method}, "
        f"{manifest.num_hops} hop{'s' * (manifest.num_hops > 1)} of halo, seed {manifest.seed}"
    )
    print(quality)
    longest = max(1, *(a + b for a, b in zip(quality.nodes, quality.halo_nodes, strict=True)))
    print("own nodes #, halo rows .")
    for part, (own, halo) in enumerate(zip(quality.nodes, quality.halo_nodes, strict=True)):
        print(f"{part:>4}  {'#' * _share(own, longest)}{'.' * _share(halo, longest)}")


def _share(count: int, longest: int) -> int:
    return -(-count * WIDTH // longest)


COMMANDS = (
    cli.Command("partition", "cut a data set into parts", _add_partition_arguments, _partition),
    cli.Command("inspect", "show sizes, cut and balance of the parts", _add_inspect_arguments,
                _inspect),
)  # fmt: skip
