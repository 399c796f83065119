"""Builder of the built-in data set "debian": the package index of a Debian machine as arrays.

Run it on a Debian machine after ``apt-get update``::

    python -m hopline.pipes.datasets.build_debian debian.npz --release "12.15 bookworm"

It reads what ``apt-cache dumpavail`` prints, keeps the packages of Debian's own component main,
one version of each, and writes one compressed ``.npz`` without pickled objects. The same index
gives the same bytes. ``debian.py`` expands the file into a data set folder;
``docs/builtin-datasets.md`` describes the graph.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hopline.pipes.datasets.debian import FORMAT_VERSION, NUM_SIZES, Arrays

__all__ = ["build_arrays", "main", "read_package_index", "write_archive"]

# Order defines the relation ids: `Depends` is 0.
RELATIONS = (
    "Depends",
    "Pre-Depends",
    "Recommends",
    "Suggests",
    "Enhances",
    "Breaks",
    "Conflicts",
    "Replaces",
)
POOLS = ("pool/main/", "pool/updates/main/")
WORD = re.compile(r"[a-z][a-z0-9+#-]+")

Stanza = dict[str, str]


def read_package_index() -> str:
    """Text of the machine's package index, as ``apt-cache dumpavail`` prints it.

    Packages that happen to be installed are left out of the view (an empty status file), so that a
    version installed from elsewhere cannot stand in for the one in the archive.

    Raises:
        RuntimeError: ``apt-cache`` is missing, fails or prints nothing.
    """
    command = ["apt-cache", "-o", "Dir::State::status=/dev/null", "dumpavail"]
    try:
        result = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        raise RuntimeError(
            "apt-cache was not found: the builder reads the package index of a Debian machine. "
            "Run it on one, or use the data set that ships with the package."
        ) from None
    text = result.stdout.decode("utf-8", errors="replace")
    if result.returncode != 0:
        reason = result.stderr.decode("utf-8", errors="replace").strip()
        raise RuntimeError(f"`{' '.join(command)}` ended with code {result.returncode}: {reason}")
    if not text.strip():
        raise RuntimeError(
            f"`{' '.join(command)}` printed nothing: the machine has no package index yet. "
            "Run `apt-get update` first."
        )
    return text


def parse_stanzas(text: str) -> Iterator[Stanza]:
    """Yield the stanzas of a package index as {field: value}.

    Continuation lines are kept, joined by newlines. A block without a ``Package`` field is skipped.
    """
    for block in re.split(r"\n[ \t]*\n", text):
        stanza: Stanza = {}
        field = None
        for line in block.split("\n"):
            if line.startswith((" ", "\t")):
                if field is not None:
                    stanza[field] += "\n" + line.strip()
            elif ":" in line:
                field, value = line.split(":", 1)
                stanza[field] = value.strip()
        if "Package" in stanza:
            yield stanza


def is_debian_main(stanza: Stanza) -> bool:
    """Whether the package comes from component main of Debian's own archive.

    Debian keeps main under ``pool/main`` (security updates under ``pool/updates/main``), writes
    sections of other components with a prefix, and moves descriptions to translation files, which
    leaves ``Description-md5`` behind; other repositories differ in at least one of the three.
    """
    return (
        stanza.get("Filename", "").startswith(POOLS)
        and "/" not in stanza.get("Section", "")
        and "Description-md5" in stanza
    )


def relation_targets(value: str) -> Iterator[str]:
    """Yield the package names in a relation field: without versions, architectures and profiles."""
    for alternative in re.split(r"[,|]", value):
        name = re.split(r"[\s(:\[<]", alternative.strip(), maxsplit=1)[0]
        if name:
            yield name


def source_name(stanza: Stanza) -> str:
    """Name of the source package that the package is built from."""
    return stanza.get("Source", stanza["Package"]).split(" ")[0]


def split_of(source: str) -> int:
    """0 (train), 1 (validation) or 2 (test), by source package: 60/20/20 %."""
    bucket = zlib.crc32(source.encode()) % 10
    return 0 if bucket < 6 else 1 if bucket < 8 else 2


def collect_edges(
    names: Sequence[str], packages: dict[str, Stanza]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Typed relations between packages.

    A name that is no package stands for every package that provides it. Self-loops are dropped, and
    a package that names another one twice in one field counts once.

    Returns:
        counts: int64[num_packages, num_relations], how many targets a package names in a field.
        targets: int64[sum of counts], sorted by package, relation, target.
    """
    ids = {name: i for i, name in enumerate(names)}
    providers: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        for virtual in relation_targets(packages[name].get("Provides", "")):
            providers.setdefault(virtual, []).append(i)

    counts = np.zeros((len(names), len(RELATIONS)), dtype=np.int64)
    targets: list[int] = []
    for i, name in enumerate(names):
        for r, relation in enumerate(RELATIONS):
            found: set[int] = set()
            for target in relation_targets(packages[name].get(relation, "")):
                found.update([ids[target]] if target in ids else providers.get(target, ()))
            found.discard(i)
            counts[i, r] = len(found)
            targets.extend(sorted(found))
    return counts, np.array(targets, dtype=np.int64)


def collect_words(
    descriptions: Sequence[str], sources: Sequence[str], columns: int, min_sources: int
) -> Arrays:
    """Words of the descriptions as numbers; the words themselves are not kept.

    A word counts if the packages of at least ``min_sources`` source packages use it. It becomes a
    column (crc32 modulo ``columns``), a sign (bit 16 of the crc32) and the logarithm of its
    inverse document frequency.

    Returns:
        word_column, word_sign, word_idf: one entry a word, most frequent first.
        word_counts, word_ids: words a package, and their positions in the arrays above, ascending.
    """
    words = [set(WORD.findall(text.lower())) for text in descriptions]
    used_by: dict[str, set[str]] = {}
    frequency: dict[str, int] = {}
    for found, source in zip(words, sources, strict=True):
        for word in found:
            used_by.setdefault(word, set()).add(source)
            frequency[word] = frequency.get(word, 0) + 1
    vocabulary = [word for word, users in used_by.items() if len(users) >= min_sources]
    vocabulary.sort(key=lambda word: (-frequency[word], word))
    position = {word: k for k, word in enumerate(vocabulary)}
    lists = [sorted(position[word] for word in found if word in position) for found in words]
    codes = np.array([zlib.crc32(word.encode()) for word in vocabulary], dtype=np.int64)
    share = np.array([frequency[word] for word in vocabulary], dtype=np.float64) / len(words)
    return {
        "word_column": _narrow(codes % columns),
        "word_sign": np.where((codes >> 16) & 1, 1, -1).astype(np.int8),
        "word_idf": (-np.log(share)).astype(np.float32),
        "word_counts": _narrow(np.array([len(found) for found in lists], dtype=np.int64)),
        "word_ids": _narrow(np.array([k for found in lists for k in found], dtype=np.int64)),
    }


def collect_sizes(stanzas: Sequence[Stanza]) -> npt.NDArray[np.float16]:
    """float16[num_packages, 2]: logarithms of the installed and the archive size.

    Each column has mean 0 and standard deviation 0.1, about the size of one entry of a row of word
    weights. A package that does not tell a size has 0 there.
    """
    sizes = np.zeros((len(stanzas), NUM_SIZES))
    for k, field in enumerate(("Installed-Size", "Size")):
        values = [stanza.get(field, "") for stanza in stanzas]
        known = np.array([value.isdecimal() for value in values])
        logs = np.log1p([float(value) for value in values if value.isdecimal()])
        if len(logs) and logs.std() > 0:
            sizes[known, k] = 0.1 * (logs - logs.mean()) / logs.std()
    return sizes.astype(np.float16)


def build_arrays(
    text: str, *, feature_dim: int = 256, min_sources: int = 20, release: str = ""
) -> Arrays:
    """Turn the text of a package index into the arrays of the data set file.

    Args:
        text: what ``apt-cache dumpavail`` prints.
        feature_dim: columns of the features, 3 or more: two for the sizes, the others for the
            words of the descriptions.
        min_sources: a word counts if that many source packages use it.
        release: name of the release, kept for information.

    Returns:
        The arrays of the file; ``debian.py`` lists them.

    Raises:
        ValueError: the text has no package of Debian main.
    """
    packages: dict[str, Stanza] = {}
    seen = 0
    for stanza in parse_stanzas(text):
        seen += 1
        if is_debian_main(stanza):
            packages.setdefault(stanza["Package"], stanza)
    if not packages:
        raise ValueError(
            f"The package index has {seen} packages and none of Debian's component main; expected "
            f"stanzas whose Filename starts with {' or '.join(POOLS)}. "
            "Check the machine's apt sources and run `apt-get update`."
        )
    names = sorted(packages)
    stanzas = [packages[name] for name in names]
    sources = [source_name(stanza) for stanza in stanzas]
    sections = [stanza.get("Section", "unknown") for stanza in stanzas]
    classes = sorted(set(sections))
    class_of = {section: k for k, section in enumerate(classes)}
    counts, targets = collect_edges(names, packages)
    descriptions = [stanza.get("Description", "").split("\n", 1)[0] for stanza in stanzas]
    return {
        "format_version": np.array(FORMAT_VERSION, dtype=np.int64),
        "release": _lines([release]),
        "names": _lines(names),
        "class_names": _lines(classes),
        "relation_names": _lines(RELATIONS),
        "labels": _narrow(np.array([class_of[section] for section in sections], dtype=np.int64)),
        "splits": np.array([split_of(source) for source in sources], dtype=np.uint8),
        "edge_counts": _narrow(counts),
        "edge_targets": _narrow(targets),
        "sizes": collect_sizes(stanzas),
        "word_columns": np.array(feature_dim - NUM_SIZES, dtype=np.int64),
        **collect_words(descriptions, sources, feature_dim - NUM_SIZES, min_sources),
    }


def write_archive(path: Path, arrays: Arrays) -> None:
    """Write the arrays to a compressed ``.npz``, beside the target first, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # As np.savez_compressed does, which refuses to pickle since numpy 2.1 only.
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(arrays):
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.asanyarray(arrays[name]), allow_pickle=False)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: build the file, print what it holds; 1 when the index cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m hopline.pipes.datasets.build_debian",
        description="Build the data set file of the Debian package graph from apt's index.",
    )
    parser.add_argument("out", type=Path, help="file to write, e.g. debian.npz")
    parser.add_argument("--feature-dim", type=int, default=256, help="columns of the features")
    parser.add_argument("--release", default="", help='for information, e.g. "12.15 bookworm"')
    options = parser.parse_args(arguments)
    if options.feature_dim <= NUM_SIZES:
        parser.error(f"--feature-dim is {options.feature_dim}; expected more than {NUM_SIZES}")
    try:
        arrays = build_arrays(
            read_package_index(), feature_dim=options.feature_dim, release=options.release
        )
    except (RuntimeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    write_archive(options.out, arrays)
    print(
        f"{options.out}: {options.out.stat().st_size} bytes, {len(arrays['labels'])} packages, "
        f"{len(arrays['edge_targets'])} relations, {len(arrays['word_idf'])} words"
    )
    return 0


def _lines(texts: Sequence[str]) -> npt.NDArray[np.uint8]:
    """Texts as one array of UTF-8 bytes, a newline after each."""
    return np.frombuffer("".join(text + "\n" for text in texts).encode(), dtype=np.uint8)


def _narrow(values: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Non-negative integers in the smallest unsigned type that holds them."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


if __name__ == "__main__":
    sys.exit(main())
