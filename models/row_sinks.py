"""Where the rows of a layer go: memory, a scratch file, or a .npy file of the user's."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from pathlib import Path

import numpy as np
import torch

from hopline.pipes.datasets.npy_writer import NpyWriter, sync_folder
from hopline.pipes.npy import read_npy

__all__ = ["MemoryRows", "NpyRows", "RowSink", "ScratchRows"]


class RowSink:
    """Takes the rows of an array from its first to its last, and then gives them all."""

    def append(self, rows: torch.Tensor) -> None:
        """Takes the next rows."""
        raise NotImplementedError

    def finish(self) -> torch.Tensor:
        """All rows, once the last has come."""
        raise NotImplementedError

    def close(self) -> None:
        """Lets go of memory and scratch files; nothing of what `finish` gave may be in use."""


class MemoryRows(RowSink):
    """Rows of a tensor.

    Args:
        tensor: to be filled.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor: torch.Tensor | None = tensor
        self._rows = 0

    def append(self, rows: torch.Tensor) -> None:
        """Takes the next rows."""
        assert self._tensor is not None
        self._tensor[self._rows : self._rows + len(rows)] = rows
        self._rows += len(rows)

    def finish(self) -> torch.Tensor:
        """The tensor."""
        assert self._tensor is not None
        return self._tensor

    def close(self) -> None:
        """Lets go of the tensor."""
        self._tensor = None


class ScratchRows(RowSink):
    """Rows of a temporary file, mapped when it is whole.

    The file has no name where the system allows that, so it goes with the process, however that
    ends; elsewhere it is deleted when closed. It is written by calls that report a full disk, not
    through a mapping, where that kills the process.

    Args:
        shape: of the array.
        dtype: of the array.
        folder: on whose disk the file is; None for the system's place for temporary files.
    """

    def __init__(
        self, shape: tuple[int, int], dtype: torch.dtype, folder: str | os.PathLike[str] | None
    ) -> None:
        self._shape = shape
        self._dtype = dtype
        self._file = tempfile.TemporaryFile(dir=folder, prefix="hopline-rows-")  # noqa: SIM115
        self._mapped: torch.Tensor | None = None

    def append(self, rows: torch.Tensor) -> None:
        """Writes the next rows."""
        rows = rows.to("cpu", self._dtype).contiguous()
        self._file.write(rows.view(-1).view(torch.uint8).numpy().data)

    def finish(self) -> torch.Tensor:
        """The file as a tensor."""
        if self._mapped is None:
            self._file.flush()
            length = self._shape[0] * self._shape[1] * self._dtype.itemsize
            pages = np.memmap(self._file, np.uint8, "r+", shape=(length,))
            self._mapped = torch.from_numpy(pages).view(self._dtype).view(self._shape)
        return self._mapped

    def close(self) -> None:
        """Closes the file, which is gone when its mapping is."""
        self._mapped = None
        self._file.close()


class NpyRows(RowSink):
    """Rows of a .npy file, which is written beside its path and renamed when it is whole.

    Args:
        path: of the file; what was there stays until then.
        shape: of the array.
        dtype: of the array.
    """

    def __init__(self, path: Path, shape: tuple[int, int], dtype: torch.dtype) -> None:
        self._path = path
        self._dtype = dtype
        self._stored = torch.int16 if dtype == torch.bfloat16 else dtype
        self._beside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
        self._writer = NpyWriter(
            self._beside, torch.empty(0, dtype=self._stored, device="cpu").numpy().dtype, shape
        )

    def append(self, rows: torch.Tensor) -> None:
        """Writes the next rows."""
        rows = rows.to("cpu", self._dtype).contiguous()
        self._writer.append(rows.view(self._stored).numpy())

    def finish(self) -> torch.Tensor:
        """The file, mapped."""
        self._writer.close()
        os.replace(self._beside, self._path)
        sync_folder(self._path.parent)
        name = str(self._dtype).removeprefix("torch.")
        return read_npy(self._path, dtype=name)

    def close(self) -> None:
        """Deletes what is not whole."""
        if self._beside.exists():
            # Rows are missing, or the disk is full: that is why it goes.
            with contextlib.suppress(ValueError, OSError):
                self._writer.close()
            self._beside.unlink(missing_ok=True)
