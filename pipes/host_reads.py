"""HostReads: what the host must know of a device's results, read all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hopline.pipes.checks import check_id_tensor, id_out_of_range
from hopline.pipes.kernels.cuda.launching import NOTHING
from hopline.pipes.kernels.cuda.rows import first_out_of_range

__all__ = ["HostReads"]


class HostReads:
    """Sizes and errors of one mini-batch's kernels.

    Each read makes the host wait for the device; so errors wait until a size must be known. A
    kernel never follows what it found to be bad.

    Args:
        device: where the results are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._expected: list[tuple[torch.Tensor, Callable[[int], Exception]]] = []

    def expect_nothing(self, position: torch.Tensor, error: Callable[[int], Exception]) -> None:
        """Has the next `read` raise if a kernel has met a bad entry.

        Args:
            position: int64[1] on the device, NOTHING or where it was met.
            error: makes the exception from the position.
        """
        self._expected.append((position, error))

    def read(self, *numbers: torch.Tensor) -> list[int]:
        """Waits for numbers, int64[...] on the device; one list of all.

        Raises:
            Exception: the first error that was met.
        """
        expected, self._expected = self._expected, []
        flat = [position.view(1) for position, _ in expected]
        values = self._fetch(torch.cat(flat + [number.reshape(-1) for number in numbers]))
        for value, (_, error) in zip(values, expected, strict=False):
            if value != NOTHING:
                raise error(value)
        return values[len(expected) :]

    @staticmethod
    def _fetch(values: torch.Tensor) -> list[int]:
        found: list[int] = values.tolist()
        return found

    def check_ids(self, ids: Any, count: int, what: str, dtype: torch.dtype) -> torch.Tensor:
        """As `hopline.pipes.checks.check_ids`, on the device: ids out of range raise in `read`.

        Args:
            ids: integer tensor of one dimension.
            count: number of things that may be named.
            what: what the ids name, for the message.
            dtype: torch.int32 or torch.int64.

        Raises:
            TypeError: ids are not a tensor of integers.
            ValueError: ids are not 1-D, or have no values.
        """
        check_id_tensor(ids, what, dtype)
        ids = ids.detach().to(self._device, non_blocking=True).contiguous()
        words = ids
        if ids.dtype == torch.uint64:
            words = ids.view(torch.int64)  # above 2**63 negative, so out of range too
        self.expect_nothing(
            first_out_of_range(words, 0, count),
            # By numpy: torch does not give the host words of uint64 from 2**63 on.
            lambda at: id_out_of_range(int(ids[at].cpu().numpy()), at, count, what),
        )
        checked: torch.Tensor = words.to(dtype)
        return checked
