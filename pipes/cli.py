"""The `hopline` command, for data sets: preprocess one, or tell what is in one."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from hopline.pipes.datasets.dataset import AnyItemSet
from hopline.pipes.datasets.ondisk import OnDiskDataset
from hopline.pipes.datasets.preprocess import preprocess_ondisk_dataset

__all__ = ["COMMANDS", "Command", "main", "parse_memory"]

DESCRIPTION = "Mini-batch pipelines for training graph neural networks on large graphs."

MOST_MEMORY = 1 << 60
SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(?:([KMGT]?)(I?)B)?", re.IGNORECASE)


@dataclass(frozen=True)
class Command:
    """A command of `hopline`.

    Attributes:
        name: the word after `hopline`.
        help: what it does, in a line.
        add_arguments: adds its arguments to its parser.
        run: does the work.
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


def main(arguments: Sequence[str] | None = None, commands: Sequence[Command] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: command line without the program's name; None takes the process's own.
        commands: those to choose from; None takes the ones about data sets.

    Returns:
        The exit status: 0, or 1 after an error, which is told on standard error.
    """
    parser = argparse.ArgumentParser(prog="hopline", description=DESCRIPTION)
    choices = parser.add_subparsers(dest="command", required=True)
    known = {command.name: command for command in commands or COMMANDS}
    for command in known.values():
        command.add_arguments(choices.add_parser(command.name, help=command.help))
    options = parser.parse_args(arguments)
    try:
        known[options.command].run(options)
    except (ValueError, IndexError, OSError, RuntimeError, MemoryError) as error:
        print(f"hopline: error: {error}", file=sys.stderr)
        return 1
    return 0


def parse_memory(text: str) -> int:
    """A size in bytes, from words.

    Args:
        text: a number, and a unit: B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (of
            1024). Without a unit it is in GiB.

    Raises:
        argparse.ArgumentTypeError: it is anything else.

    Example:
        >>> parse_memory("8GB"), parse_memory("1.5 MiB"), parse_memory("2")
        (8000000000, 1572864, 2147483648)
    """
    found = SIZE.fullmatch(text.strip())
    if found is None or (found[3] and not found[2]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; expected a number and a unit, such as 8GB, 512MiB or 1.5TB; "
            "a bare number is in GiB"
        )
    number, prefix, binary = found.groups()
    unit = 1 << 30
    if prefix is not None:
        unit = (1024 if binary else 1000) ** " KMGT".index(prefix.upper() or " ")
    size = float(number) * unit
    if size > MOST_MEMORY:
        raise argparse.ArgumentTypeError(f"{text:.40} is above {MOST_MEMORY} bytes")
    return int(size)


def _add_dataset_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what names a data set."""
    parser.add_argument("dir", metavar="DIR", help="folder with metadata.yaml")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="the result's folder (default: DIR/preprocessed, or below HOPLINE_PROCESSED_PATH)",
    )


def _add_preprocess_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="work anew in any case")
    parser.add_argument(
        "--include-original-edge-id",
        action="store_true",
        default=None,
        help="keep each edge's number in the input (always done when there are edge features)",
    )
    parser.add_argument(
        "--max-memory",
        type=parse_memory,
        default="4GiB",
        metavar="SIZE",
        help="bound on working memory, e.g. 8GB, 512MiB; a bare number is in GiB (default: 4)",
    )
    parser.add_argument(
        "--progress",
        action="store_true",
        default=None,
        help="show what is done and the time left (done on a terminal in any case)",
    )
    _add_dataset_arguments(parser)


def _preprocess(options: argparse.Namespace) -> None:
    result = preprocess_ondisk_dataset(
        options.dir,
        options.include_original_edge_id,
        True if options.force else None,
        processed_path=options.out,
        max_memory=options.max_memory,
        progress=options.progress,
    )
    print(result.parent)


def _info(options: argparse.Namespace) -> None:
    dataset = OnDiskDataset(options.dir, processed_path=options.out).load()
    graph = dataset.graph
    print(f"data set      {dataset.dataset_name or '(no name)'}")
    print(f"preprocessed  {dataset.processed_path}")
    for kind, numbers in (("nodes", graph.num_nodes), ("edges", graph.num_edges)):
        if isinstance(numbers, int):
            print(f"{kind}         {numbers:,}")
        else:
            for name, number in numbers.items():
                print(f"{kind}         {name}  {number:,}")
    for kind, attributes in (("node", graph.node_attributes), ("edge", graph.edge_attributes)):
        for name, value in (attributes or {}).items():
            print(f"{kind} attribute  {name}  {_dtype(value.dtype)}{list(value.shape)}")
    for key in dataset.feature.keys():  # noqa: SIM118  (a store is no dict)
        feature = dataset.feature[key]
        where = ", ".join(str(part) for part in key if part is not None)
        row = feature.read(torch.empty(0, dtype=torch.int64, device="cpu"))
        print(f"feature       {where}  {_dtype(row.dtype)}{[feature.count(), *feature.size()]}")
    for i, task in enumerate(dataset.tasks):
        sets: list[tuple[str, AnyItemSet | None]] = [
            ("train", task.train_set),
            ("validation", task.validation_set),
            ("test", task.test_set),
        ]
        sizes = ", ".join(f"{name} {len(items):,}" for name, items in sets if items is not None)
        print(f"task {i}        {task.metadata.get('name', '(no name)')}  {sizes}")


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


COMMANDS = (
    Command(
        "preprocess",
        "make the arrays that training maps, unless they are there",
        _add_preprocess_arguments,
        _preprocess,
    ),
    Command(
        "info",
        "show graph, features and tasks (preprocesses the data set if need be)",
        _add_dataset_arguments,
        _info,
    ),
)
