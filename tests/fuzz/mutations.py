"""Ways to damage a data set: its description, its arrays and tables, its files, its result."""

from __future__ import annotations

import copy
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import yaml

__all__ = ["mutate"]

KEYS = ["type", "num", "path", "format", "name", "domain", "key", "dtype", "in_memory", "nodes",
        "edges", "data", "tasks", "graph", "feature_data", "train_set", "extra", "", 3,
        None]  # fmt: skip
SCALARS = [None, True, False, 0, 1, -1, 2, 3, 23, 25, 2**31, 2**41, 2**63, 2**64, -(2**63), 10**40,
           0.0, 1.5, float("nan"), float("inf"), "", "numpy", "csv", "torch", "parquet", "npz",
           "node", "edge", "graph", "bfloat16", "seeds", "labels", "timestamp", "weight", "user",
           "item", "user:likes:item", "user:follows:user", "a:b:c", "::", "con", "nul", "é\u0301",
           "\u202e", "a" * 5000, "a/b", "../x", "x\x00y", "\ud7ff", "'\"", "_ORIGINAL_EDGE_ID",
           "%2e", "input_nodes", "to", "key", "pre_time_window", b"bytes"]  # fmt: skip
PATHS = ["..", "../../etc/passwd", "/etc/passwd", "/dev/zero", "/dev/stdin", "/dev/null", ".", "",
         "metadata.yaml", "nothing.npy", "preprocessed", "x\x00.npy", "a" * 300, "//", "~/x",
         "preprocessed/metadata.yaml", "/proc/self/mem"]  # fmt: skip
DTYPES = ["?", "i1", "u1", "i2", ">u2", "u4", ">i4", "i8", ">i8", "u8", "f2", ">f4", "f8", "g",
          "c8", "c16", "U2", "S3", "M8[s]", "m8[D]", "V3", "O"]  # fmt: skip
NUMBERS = [-1, 0, 1, 2, 255, 2**15, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63), 2**53]
FLOATS = [float("nan"), float("inf"), -float("inf"), -1.0, -0.0, 1e-310, 1e308, 1e-45, 3.0e38]


def mutate(folder: Path, r: random.Random) -> str:
    """Damages a data set once; what was done, in words."""
    processed = folder / "preprocessed"
    pool = PROCESSED if processed.exists() and r.random() < 0.8 else INPUTS
    kinds = [kind for kind, _ in pool]
    weights = [weight for _, weight in pool]
    return r.choices(kinds, weights)[0](folder, r)


# ---------------------------------------------------------------------------------------------
# The description


def _containers(node: Any) -> Iterator[Any]:
    yield node
    for child in node.values() if isinstance(node, dict) else node:
        if isinstance(child, dict | list):
            yield from _containers(child)


def _dump(path: Path, document: Any) -> None:
    path.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def yaml_values(folder: Path, r: random.Random) -> str:
    return _yaml_values(folder / "metadata.yaml", r)


def _yaml_values(path: Path, r: random.Random) -> str:
    document = yaml.safe_load(path.read_text())
    done = []
    for _ in range(r.randint(1, 3)):
        places = list(_containers(document))
        node = r.choice(places)
        if not node:
            continue
        at: Any = r.choice(list(node)) if isinstance(node, dict) else r.randrange(len(node))
        kind = r.choice(["delete", "scalar", "scalar", "scalar", "path", "copy", "add", "wrap"])
        match kind:
            case "delete":
                del node[at]
            case "scalar":
                node[at] = r.choice(SCALARS)
            case "path":
                holders = [n for n in places if isinstance(n, dict) and "path" in n]
                if holders:
                    node, at = r.choice(holders), "path"
                    here = [p.name for p in path.parent.iterdir()]
                    node[at] = r.choice(PATHS + here)
            case "copy":
                node[at] = copy.deepcopy(r.choice(places))
            case "add" if isinstance(node, dict):
                node[r.choice(KEYS)] = r.choice(SCALARS)
            case "add":
                node.append(copy.deepcopy(r.choice(node)))
            case _:
                node[at] = [node[at]] if r.random() < 0.5 else {"x": node[at]}
        done.append(f"{kind} {at!r}")
    _dump(path, document)
    return f"{path.name}: {', '.join(done)}"


def yaml_text(folder: Path, r: random.Random) -> str:
    return _yaml_text(folder / "metadata.yaml", r)


def _yaml_text(path: Path, r: random.Random) -> str:
    text = path.read_bytes()
    lines = text.splitlines(keepends=True)
    laughs = b"a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + b"".join(
        b"a%d: &a%d [%s]\n" % (i, i, b", ".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 12)
    )
    kind = r.choice(["laughs", "twice", "deep", "tag", "bom", "utf16", "nul", "tab", "cycle",
                     "int", "merge", "bytes", "cut", "crlf", "documents", "many",
                     "empty"])  # fmt: skip
    match kind:
        case "laughs":
            text = text + laughs
        case "twice":
            text = text + r.choice(lines)
        case "deep":
            text = text + b"deep: " + b"[" * r.choice([50, 500, 5000]) + b"\n"
        case "tag":
            tag = r.choice([b"!!python/object/apply:os.abort []", b"!!binary zzz", b"!!float x",
                            b"!!timestamp x", b"!!set {a}", b"!!omap [a: 1]", b"2001-01-01",
                            b"!!int ''", b"0o9", b"190:20:30", b".inf", b"!foo bar"])  # fmt: skip
            at = r.randrange(len(lines))
            head, colon, _ = lines[at].partition(b":")
            lines[at] = (head + b": " if colon else b"- ") + tag + b"\n"
            text = b"".join(lines)
        case "bom":
            text = b"\xef\xbb\xbf" + text
        case "utf16":
            text = text.decode().encode("utf-16")
        case "nul":
            at = r.randrange(len(text))
            text = text[:at] + b"\0" + text[at:]
        case "tab":
            text = text.replace(b"  ", b"\t", r.randint(1, 3))
        case "cycle":
            text = text + b"loop: &l [*l]\n"
        case "int":
            text = text.replace(b"num: ", b"num: " + b"9" * r.choice([1, 30, 5000]), 1)
        case "merge":
            text = text + b"<<: [{graph: 1}, {tasks: []}]\n"
        case "bytes":
            content = bytearray(text)
            for _ in range(r.randint(1, 3)):
                content[r.randrange(len(content))] = r.randrange(256)
            text = bytes(content)
        case "cut":
            text = text[: r.randrange(len(text))]
        case "crlf":
            text = text.replace(b"\n", b"\r\n")
        case "documents":
            text = text + b"---\n" + text
        case "many":
            text = text + b"extra: [" + b"1," * r.choice([10, 3000]) + b"]\n"
        case _:
            text = r.choice([b"", b"null", b"- 1", b"3", b"{}", b"---\n...\n"])
    path.write_bytes(text)
    return f"{path.name}: text, {kind}"


# ---------------------------------------------------------------------------------------------
# Arrays


def _pick(folder: Path, r: random.Random, *suffixes: str) -> Path | None:
    found = sorted(p for p in folder.rglob("*") if p.suffix in suffixes and p.is_file())
    return r.choice(found) if found else None


def header(folder: Path, r: random.Random) -> str:
    """Another .npy header before the same bytes."""
    path = _pick(folder, r, ".npy")
    if path is None:
        return yaml_values(folder, r)
    content = path.read_bytes()
    length = int.from_bytes(content[8:10], "little")
    text, data = content[10 : 10 + length].decode("latin1"), content[10 + length :]
    fields = eval(text, {"__builtins__": {}})  # noqa: S307 - what numpy.save wrote a moment ago
    kind = r.choice(["dtype", "shape", "order", "length", "version", "text", "cut", "keys", "big"])
    magic, wide = b"\x93NUMPY\x01\x00", 2
    match kind:
        case "dtype":
            fields["descr"] = r.choice(["<" + d if d[0] not in "<>?" else d for d in DTYPES])
        case "shape":
            shape = list(fields["shape"])
            change: list[Any] = [0, 1, -1, shape[0] + 1, shape[0] - 1, 2**31, 2**40, 2**62, 2**63,
                                 2**64, 10**30, 1.5, None, "3", True]  # fmt: skip
            if r.random() < 0.6:
                shape[r.randrange(len(shape))] = r.choice(change)
            else:
                shape = r.choice([[], shape[::-1], [*shape, 1], [*shape, 0], [1, *shape], shape * 3,
                                  [0, 2**62], [2**32, 2**32], [1] * 40])  # fmt: skip
            fields["shape"] = tuple(shape)
        case "order":
            fields["fortran_order"] = r.choice([True, 1, "x", None])
        case "keys":
            fields["extra"] = 1
    text = repr(fields)
    if kind == "text":
        text = r.choice(["", "{", "[]", "{}", "(" * 300, "__import__('os').abort()", "\x00",
                         "9" * 9000, text.replace("'", '"'), text[: len(text) // 2]])  # fmt: skip
    body = (text + "\n").encode("latin1")
    size = len(body)
    match kind:
        case "length":
            size = r.choice([0, 1, size - 1, size + 1, size + 64, 65535])
        case "version":
            magic = b"\x93NUMPY" + r.choice([b"\x02\x00", b"\x03\x00", b"\x00\x00", b"\xff\xff"])
            wide = 4
        case "big":
            magic, wide, size = b"\x93NUMPY\x02\x00", 4, r.choice([2**31, 2**32 - 1, 10**6])
        case "cut":
            data = data[: r.randrange(len(data) + 1)]
    path.write_bytes(magic + size.to_bytes(wide, "little") + body + data)
    return f"{path.relative_to(folder)}: header, {kind} {text[:90]!r}"


def values(folder: Path, r: random.Random) -> str:
    """Other values in an array of the same form."""
    path = _pick(folder, r, ".npy")
    if path is None:
        return yaml_values(folder, r)
    array = np.load(path)
    flat = array.reshape(-1).copy()
    kind = r.choice(["entries", "entries", "entries", "reverse", "shuffle", "all", "roll"])
    chosen: Any = None
    if flat.size == 0:
        kind = "nothing"
    with np.errstate(all="ignore"):
        match kind:
            case "entries" | "all":
                places = [r.randrange(flat.size) for _ in range(r.randint(1, 3))]
                near = (
                    int(r.choice([flat.min(), flat.max() + 1, len(array)]))
                    if flat.dtype.kind in "iu"
                    else 0
                )
                chosen = r.choice([*NUMBERS, near]) if flat.dtype.kind in "iu" else r.choice(FLOATS)
                if flat.dtype.kind in "iu":
                    chosen = int(
                        np.array(chosen % 2 ** (8 * flat.itemsize), np.uint64).astype(flat.dtype)
                    )
                flat[slice(None) if kind == "all" else places] = chosen
            case "reverse":
                flat = flat[::-1]
            case "shuffle":
                flat = flat[r.sample(range(flat.size), flat.size)]
            case "roll":
                flat = np.roll(flat, 1)
    np.save(path, flat.reshape(array.shape))
    return f"{path.relative_to(folder)}: values, {kind} {chosen}"


def another_array(folder: Path, r: random.Random) -> str:
    """An array of another dtype, shape or order in a file's place."""
    path = _pick(folder, r, ".npy")
    if path is None:
        return yaml_values(folder, r)
    array = np.load(path)
    kind = r.choice(["dtype", "fortran", "rows", "reshape", "object", "big-endian", "empty"])
    match kind:
        case "dtype":
            with np.errstate(all="ignore"):
                array = np.abs(array).astype(r.choice(DTYPES[:16]))
        case "fortran":
            array = np.asfortranarray(array)
        case "rows":
            array = (
                array[: r.randint(0, len(array))] if r.random() < 0.5 else np.repeat(array, 2, 0)
            )
        case "reshape":
            array = r.choice([array.T, array.reshape(-1), array[None], array[..., None]])
        case "object":
            array = array.astype(object)
        case "big-endian":
            array = array.astype(array.dtype.newbyteorder(">"))
        case _:
            array = array[:0]
    np.save(path, array)
    return f"{path.relative_to(folder)}: array, {kind} {array.dtype}{array.shape}"


def bits(folder: Path, r: random.Random) -> str:
    """Bits flipped anywhere in a file."""
    path = r.choice(sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size))
    content = bytearray(path.read_bytes())
    places = [r.randrange(len(content)) for _ in range(r.randint(1, 4))]
    for at in places:
        content[at] ^= 1 << r.randrange(8)
    path.write_bytes(content)
    return f"{path.relative_to(folder)}: bits at {places}"


# ---------------------------------------------------------------------------------------------
# Tables


def table(folder: Path, r: random.Random) -> str:
    """Other text in a CSV file, other columns in a Parquet file."""
    path = _pick(folder, r, ".csv", ".parquet")
    if path is None:
        return values(folder, r)
    return _csv(path, r) if path.suffix == ".csv" else _parquet(path, r)


def _csv(path: Path, r: random.Random) -> str:
    lines = path.read_bytes().splitlines()
    end = r.choice([b"\n", b"\n", b"\r\n", b"\r"])
    bad = [b"", b"1", b"1,2,3", b"a,b", b"1.0,2", b"1,2,", b",", b'"1","2"', b"1;2", b"1 2",
           b"-1,0", b"99,0", b"9223372036854775808,0", b"1e1,2", b"0x1,2", b"#1,2", b"1,\x00",
           b"\xff,1", b"nan,1", b" 1 , 2 ", b"+1,2", b"1_0,2", b"\xd9\xa1,2", b"src,dst",
           b"9" * 5000 + b",1", b"1\x0b,2", b"1,2\x0c", b"1\t,2", b"1,2\x1c3,4",
           b"1,2\xc2\x853,4"]  # fmt: skip
    line = r.choice(bad)
    at = r.choice([0, len(lines), r.randrange(len(lines))])
    lines.insert(at, line)
    text = end.join(lines) + r.choice([b"", end, end * 3])
    text = r.choice([text, text, text, b"\xef\xbb\xbf" + text, b"", b"\n\n", text[:-3]])
    path.write_bytes(text)
    return f"{path.name}: line {at} {line[:30]!r}, ends {end!r}"


def _parquet(path: Path, r: random.Random) -> str:
    rows = parquet.read_metadata(path).num_rows
    n = list(range(rows))
    made: Any = r.choice([
        lambda: pa.table({"a": n, "b": n}),
        lambda: pa.table({"a": [None, *n[1:]]}),
        lambda: pa.table({"a": [str(i) for i in n]}),
        lambda: pa.table({"a": [[i] * (i % 3) for i in n]}),
        lambda: pa.table({"a": [[i, i] for i in n]}),
        lambda: pa.table({"a": [[[i]] for i in n]}),
        lambda: pa.table({"a": [{"x": i} for i in n]}),
        lambda: pa.table({"a": pa.array(n, pa.uint64())}),
        lambda: pa.table({"a": pa.array(n, pa.timestamp("s"))}),
        lambda: pa.table({"a": pa.array([i % 2 == 0 for i in n])}),
        lambda: pa.table({"a": pa.array([float(i) for i in n], pa.float16())}),
        lambda: pa.table({"a": pa.array(n).dictionary_encode()}),
        lambda: pa.table({"a": pa.array(n, pa.decimal128(9, 2))}),
        lambda: pa.table({}),
        lambda: pa.table({"a": n[:0]}),
        lambda: pa.table({"a": n[:-1]}),
        lambda: pa.table([n, n], names=["a", "a"]),
        lambda: pa.table({"a": [[None, 1] for _ in n]}),
        lambda: pa.table({"a": [None if i == 1 else [i] for i in n]}),
    ])()  # fmt: skip
    parquet.write_table(made, path)
    return f"{path.name}: {made.schema.to_string()!r}"


# ---------------------------------------------------------------------------------------------
# Files


def files(folder: Path, r: random.Random) -> str:
    """A file that is no longer what it was."""
    found = sorted(p for p in folder.rglob("*") if p.is_file())
    path = r.choice(found)
    kind = r.choice(["remove", "empty", "folder", "fifo", "socket", "swap", "link", "loop", "out",
                     "zero", "closed", "zeros", "grow", "cut"])  # fmt: skip
    content = path.read_bytes()
    if kind not in ("cut", "grow", "empty", "zeros", "swap", "closed"):
        path.unlink()
    match kind:
        case "empty":
            path.write_bytes(b"")
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as s:
                here = os.open(folder, os.O_RDONLY)
                s.bind(f"/proc/self/fd/{here}/{path.relative_to(folder)}")
                os.close(here)
        case "swap":
            other = r.choice(found)
            theirs = other.read_bytes()
            other.write_bytes(content)
            path.write_bytes(theirs)
        case "link":
            path.symlink_to("gone")
        case "loop":
            path.symlink_to(path.name)
        case "out":
            path.symlink_to("/etc/hostname")
        case "zero":
            path.symlink_to(r.choice(["/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem"]))
        case "closed":
            path.chmod(0)
        case "zeros":
            path.write_bytes(bytes(len(content)))
        case "grow":
            path.write_bytes(content + b"\0" * r.choice([1, 4096]))
        case "cut":
            path.write_bytes(content[: r.randrange(len(content) + 1)])
    return f"{path.relative_to(folder)}: {kind}"


# ---------------------------------------------------------------------------------------------
# The preprocessed copy


def _inside(kind: Callable[[Path, random.Random], str]) -> Callable[[Path, random.Random], str]:
    return lambda folder, r: "preprocessed: " + kind(folder / "preprocessed", r)


def graph_yaml(folder: Path, r: random.Random) -> str:
    path = folder / "preprocessed" / "graph" / "graph.yaml"
    return (_yaml_values if r.random() < 0.7 else _yaml_text)(path, r)


def same_size(folder: Path, r: random.Random) -> str:
    """A file of the preprocessed copy changed, its recorded size kept right."""
    inside = folder / "preprocessed"
    done = r.choice([header, another_array, graph_yaml_of, files])(inside, r)
    path = inside / "metadata.yaml"
    if path.is_file() and not path.is_symlink() and "metadata.yaml: " not in done:
        document = yaml.safe_load(path.read_bytes())
        if isinstance(document, dict) and isinstance(document.get("files"), dict):
            for name in document["files"]:
                if (inside / name).is_file() and not (inside / name).is_symlink():
                    document["files"][name] = (inside / name).stat().st_size
            _dump(path, document)
    return f"preprocessed, sizes right: {done}"


def graph_yaml_of(inside: Path, r: random.Random) -> str:
    return graph_yaml(inside.parent, r)


def torn(folder: Path, r: random.Random) -> str:
    """A part of the preprocessed copy gone, as after a copy that was cut short."""
    part = r.choice(["graph", "tasks", "features", "graph/edge_attributes"])
    shutil.rmtree(folder / "preprocessed" / part, ignore_errors=True)
    return f"preprocessed: {part} removed"


INPUTS: list[tuple[Callable[[Path, random.Random], str], float]] = [
    (yaml_values, 5), (yaml_text, 3), (header, 4), (values, 4), (another_array, 3), (bits, 3),
    (table, 3), (files, 3),
]  # fmt: skip
PROCESSED: list[tuple[Callable[[Path, random.Random], str], float]] = [
    (_inside(bits), 6), (_inside(values), 6), (_inside(yaml_values), 2), (_inside(yaml_text), 1),
    (graph_yaml, 3), (_inside(files), 2), (same_size, 6), (torn, 0.5),
]  # fmt: skip
