"""preprocess_ondisk_dataset: the raw files of a data set to arrays that are mapped as they are."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hopline.pipes.checks import check_count, check_flag
from hopline.pipes.datasets import location
from hopline.pipes.datasets.features import store_feature
from hopline.pipes.datasets.fingerprint import (
    difference,
    fingerprint,
    fingerprint_of_bytes,
    resolve_inputs,
)
from hopline.pipes.datasets.graph_part import count_nodes, open_graph, write_graph
from hopline.pipes.datasets.journal import Journal
from hopline.pipes.datasets.metadata import OnDiskMetaData, read_metadata
from hopline.pipes.datasets.processed import FORMAT_VERSION, Options, Processed, load_processed
from hopline.pipes.datasets.progress import Progress
from hopline.pipes.datasets.scratch import Scratch
from hopline.pipes.datasets.tasks import store_task
from hopline.pipes.datasets.workplace import Workplace, check_unique
from hopline.pipes.datasets.yaml_file import Place

__all__ = ["preprocess_ondisk_dataset"]

MIN_MEMORY = 1 << 20
SCRATCH = "scratch"
WORK_VERSION = 2  # of what an unfinished run leaves: buckets, copies, and the journal's entries


@dataclass(slots=True)
class _Request:
    """What is wanted: the data set and the options."""

    root: Path
    metadata: OnDiskMetaData
    content: bytes  # that the metadata was read from
    include_original_edge_id: bool | None
    auto_cast: bool
    max_memory: int
    place: Place
    progress: Progress
    files: dict[str, Path] = field(default_factory=dict)
    inputs: dict[str, dict[str, int | str]] = field(default_factory=dict)
    times: dict[str, list[int]] = field(default_factory=dict)

    @property
    def options(self) -> Options:
        """The options, with what None stands for."""
        wanted = self.include_original_edge_id
        if wanted is None:
            wanted = any(feature.domain == "edge" for feature in self.metadata.feature_data)
        return Options(include_original_edge_id=wanted, auto_cast_to_optimal_dtype=self.auto_cast)

    def take_fingerprints(self) -> None:
        """Finds the inputs and records their content."""
        self.files = resolve_inputs(self.metadata, self.root, self.place)
        self.times = self.times_of_change()  # before the content is read
        self.inputs = {name: fingerprint(path) for name, path in self.files.items()}
        self.inputs[self.place.file.name] = fingerprint_of_bytes(self.content)

    def times_of_change(self) -> dict[str, list[int]]:
        """When content and record of each input were last changed.

        A file that was changed and put back has its former content and another record.
        """
        status = {name: path.stat() for name, path in self.files.items()}
        return {name: [s.st_mtime_ns, s.st_ctime_ns] for name, s in status.items()}

    def reason(self, folder: Path) -> str | None:
        """Why the result in a folder does not serve; None if it does."""
        found = load_processed(folder)
        if isinstance(found, str):
            return found
        changed = difference(found.inputs, self.inputs)
        if changed is not None:
            return changed
        for name, wanted in self.options:
            had = getattr(found.options, name)
            # Edge ids that nobody asked for do no harm, so None takes them.
            optional = name == "include_original_edge_id" and self.include_original_edge_id is None
            if had != wanted and not (optional and had):
                return f"{name} was {had} and is {wanted}"
        missing = found.missing_file(folder)
        return None if missing is None else f"its file {missing} is gone or incomplete"


def preprocess_ondisk_dataset(
    dataset_dir: str | os.PathLike[str],
    include_original_edge_id: bool | None = None,
    force_preprocess: bool | None = None,
    auto_cast_to_optimal_dtype: bool = True,
    *,
    processed_path: str | os.PathLike[str] | None = None,
    max_memory: int = 4 << 30,
    wait_timeout: float = 24 * 3600.0,
    progress: bool | None = None,
) -> Path:
    """Preprocesses a data set, unless that has been done from the same files and options.

    The result lies in `processed_path`; else in a folder of its own below the folder that the
    environment variable HOPLINE_PROCESSED_PATH names; else in `preprocessed` beside the data; else,
    where the data's folder is read-only, in the user's cache folder. It is made in a working folder
    and renamed at the end. Processes that want the same result wait for the one that makes it. A
    run that was killed is continued by the next one with the same inputs and options.

    Args:
        dataset_dir: folder with metadata.yaml.
        include_original_edge_id: keep each edge's number in the input, by which edge features are
            found. None keeps them when there are edge features.
        force_preprocess: True always works anew; False takes a result that is there without
            comparing it with the inputs; None works anew when inputs, options or format changed.
        auto_cast_to_optimal_dtype: int32 ids where they fit and narrow edge types; else int64.
        processed_path: the folder for the result.
        max_memory: bytes for working arrays. Pages of mapped files do not count; `npz` arrays and
            `torch` files of old versions are read whole.
        wait_timeout: seconds to wait for another process that makes the same result.
        progress: show on standard error what is done, how fast, and the time left; None does so on
            a terminal.

    Returns:
        The result's metadata.yaml.

    Raises:
        MetadataError: the data set is described wrongly, or a file is not as described; a
            ValueError that names the YAML file and the key.
        TypeError: an argument is of wrong kind.
        NotADirectoryError: there is no such folder.
        TimeoutError: another process took too long.
        OSError: e.g. the disk has no room, which is found out before the edges are sorted; an
            older result is left as it was.
    """
    check_flag(include_original_edge_id, "include_original_edge_id", optional=True)
    check_flag(force_preprocess, "force_preprocess", optional=True)
    check_flag(auto_cast_to_optimal_dtype, "auto_cast_to_optimal_dtype")
    check_count(max_memory, "max_memory", None)
    check_flag(progress, "progress", optional=True)
    root = Path(dataset_dir).expanduser().resolve()
    if not root.is_dir():
        raise NotADirectoryError(
            f"{dataset_dir} is not a folder; expected the folder of a data set, with metadata.yaml"
        )
    if max_memory < MIN_MEMORY:
        raise ValueError(f"max_memory is {max_memory}; expected {MIN_MEMORY} bytes or more")
    path = root / "metadata.yaml"
    metadata, content = read_metadata(path)
    request = _Request(
        root,
        metadata,
        content,
        include_original_edge_id,
        auto_cast_to_optimal_dtype,
        max_memory,
        Place(path),
        Progress(progress),
    )
    _check_edge_ids(request)
    name = metadata.dataset_name
    folder = location.default_folder(root, name, processed_path)
    cache = location.cache_folder(root, name)
    movable = processed_path is None and folder.parent == root
    if force_preprocess is False:
        for place in (folder, cache) if movable and cache is not None else (folder,):
            location.put_back(place)
            if isinstance(load_processed(place), Processed):
                return place / "metadata.yaml"
    request.take_fingerprints()
    reason = request.reason(folder)
    if reason is not None and movable and not location.is_writable(root):
        if cache is None:
            raise PermissionError(
                f"{root} cannot be written to, and there is no home folder to put the result in; "
                "give a processed_path, or set XDG_CACHE_HOME"
            )
        folder, reason = cache, request.reason(cache)
    if reason is None and not force_preprocess:
        location.sweep(folder)
        return folder / "metadata.yaml"
    if not location.is_free(folder):
        raise FileExistsError(
            f"{folder} holds something else than a preprocessed data set, and is left as it is; "
            "give another processed_path"
        )
    with location.locked(folder, wait_timeout):
        waited_for = request.reason(folder)
        if waited_for is not None or force_preprocess:
            if (folder / "metadata.yaml").exists():
                why = waited_for or "force_preprocess is set"
                location.report(f"preprocessing {root} again, since {why}")
            _run(request, folder, bool(force_preprocess))
    return folder / "metadata.yaml"


def _check_edge_ids(request: _Request) -> None:
    """Edge features are found by edge ids; without them a fetch would fail, or read other rows."""
    if request.include_original_edge_id is not False:
        return
    for i, feature in enumerate(request.metadata.feature_data):
        if feature.domain == "edge":
            raise (
                request.place.at("feature_data")
                .at(i)
                .error(
                    f"edge feature {feature.name!r} is found by original edge ids, but "
                    "include_original_edge_id is False; leave it at None, or remove the feature"
                )
            )


def _run(request: _Request, folder: Path, forced: bool) -> None:
    key = {
        "format_version": FORMAT_VERSION,
        "work_version": WORK_VERSION,
        "inputs": request.inputs,
        "options": request.options.model_dump(),
        "times": request.times,
        "forced": forced,  # who distrusts a result distrusts what is left of it
    }

    def continues(left: Path) -> bool:
        finished = not forced and request.reason(left) is None
        return finished or Journal.continues(left, key)

    with location.working_folder(folder, continues) as work:
        journal = Journal(work, key)
        if request.reason(work) is not None:
            try:
                _build(request, work, journal).save(work)
            except OSError as error:
                if error.errno is None or error.filename is not None:
                    raise
                # Of a write, which does not know the name: a full disk, for one.
                raise type(error)(error.errno, error.strerror, str(work)) from error
        for name, (changed, _) in request.times_of_change().items():
            if changed != request.times[name][0]:
                path = request.files[name]
                raise RuntimeError(f"{path} was changed while it was read; preprocess again")
        shutil.rmtree(work / SCRATCH, ignore_errors=True)
        journal.close()
        location.publish(work, folder)


def _build(request: _Request, folder: Path, journal: Journal) -> Processed:
    """Everything but metadata.yaml; cheap checks first, then the edges."""
    metadata, root = request.metadata, request.place
    (folder / SCRATCH).mkdir(exist_ok=True)
    scratch = Scratch(folder / SCRATCH, journal, request.progress, request.max_memory)
    sizes = count_nodes(metadata.graph, root.at("graph"))
    small = request.auto_cast and sum(sizes.nodes.values()) < 2**31
    work = Workplace(
        folder=folder,
        scratch=scratch,
        files=request.files,
        sizes=sizes,
        seed_dtype=np.dtype(np.int32 if small else np.int64),
        max_memory=request.max_memory,
        journal=journal,
        progress=request.progress,
    )
    graph = open_graph(metadata.graph, work, root.at("graph"))
    entries = [(root.at("feature_data").at(i), e) for i, e in enumerate(metadata.feature_data)]
    check_unique((at, (str(e.domain), e.type, e.name)) for at, e in entries)
    features = [store_feature(work, i, e, at) for i, (at, e) in enumerate(entries)]
    tasks = []
    names: list[Any] = []
    for i, task in enumerate(metadata.tasks):
        at = root.at("tasks").at(i)
        name = task.extra_fields.get("name")
        if name is not None and (not isinstance(name, str) or name in names):
            raise at.at("name").error(f"got {name!r}; expected a string that no other task has")
        names.append(name)
        tasks.append(store_task(work, i, task, at))
    write_graph(
        graph,
        work,
        auto_cast=request.auto_cast,
        include_original_edge_id=request.options.include_original_edge_id,
    )
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.parent not in (folder, scratch.folder)
    }
    return Processed(
        dataset_name=metadata.dataset_name,
        options=request.options,
        inputs=request.inputs,
        files=files,
        graph="graph",
        feature_data=features,
        tasks=tasks,
    )
