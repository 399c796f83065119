"""HostJob: what a machine is to run, as its launcher says it in one line of JSON."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

__all__ = ["HostJob", "Versions", "torchrun_command"]


# torchrun, but a signal that ends it is no traceback, which would hide what has gone wrong before.
TORCHRUN = """
import sys
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.run import main
try:
    main()
except SignalException as error:
    sys.exit(128 + error.sigval)
"""


class HostJob(BaseModel):
    """What one machine runs.

    Attributes:
        node: its number, in the order of the host file.
        nodes: number of machines.
        slots: ranks on it.
        first_rank: the first of them.
        world_size: ranks on all machines.
        master_addr: address of the first machine, as the others reach it.
        master_port: where its ranks meet.
        run_id: of this attempt, so that ranks of another cannot be met.
        timeout: seconds that machines wait for each other at the start.
        script: the script, or "-m" and a module, and its arguments.
        environment: variables for the script.
        workdir: folder that it runs in.
        parts: folder of the parts, if any.
        patience: seconds without a word from the launcher, after which it is taken for gone.
        grace: seconds from SIGTERM to SIGKILL.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    node: int = Field(ge=0)
    nodes: int = Field(ge=1)
    slots: int = Field(ge=1)
    first_rank: int = Field(ge=0)
    world_size: int = Field(ge=1)
    master_addr: str
    master_port: int = Field(ge=1, le=65535)
    run_id: str
    timeout: float = Field(gt=0)
    script: list[str] = Field(min_length=1)
    environment: dict[str, str]
    workdir: str
    parts: str | None
    patience: float = Field(gt=0)
    grace: float = Field(ge=0)

    @classmethod
    def parse(cls, line: bytes) -> HostJob:
        """The job that a line holds.

        Raises:
            ValueError: it holds something else.
        """
        try:
            return cls.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "its start"
            raise ValueError(
                f"the job is not one that this release runs (at {where}: {first['msg']}); install "
                "the same hopline on all hosts"
            ) from None

    @property
    def ranks(self) -> range:
        """Ranks on this machine."""
        return range(self.first_rank, self.first_rank + self.slots)


@dataclass(frozen=True)
class Versions:
    """What has to be the same on all machines.

    Attributes:
        hopline: of this library: ranks of different ones may not understand each other.
        torch: likewise.
        python: shown with a warning where it differs.
    """

    hopline: str
    torch: str
    python: str

    @classmethod
    def here(cls) -> Versions:
        """Those of this machine."""
        try:
            hopline = metadata.version("hopline")
        except metadata.PackageNotFoundError:
            hopline = "(not installed)"
        return cls(hopline, metadata.version("torch"), platform.python_version())

    def to_dict(self) -> dict[str, Any]:
        """For a report."""
        return asdict(self)


def torchrun_command(python: str, job: HostJob) -> list[str]:
    """The command that starts this machine's ranks.

    Machines are numbered as in the host file, which only torchrun's static rendezvous does; the
    other one sorts them by name.
    """
    address = f"[{job.master_addr}]" if ":" in job.master_addr else job.master_addr
    module = job.script[0] == "-m"
    script = job.script[1:] if module else job.script
    return [
        python, "-c", TORCHRUN,
        "--nnodes", str(job.nodes),
        "--node-rank", str(job.node),
        "--nproc-per-node", str(job.slots),
        "--rdzv-backend", "static",
        "--rdzv-endpoint", f"{address}:{job.master_port}",
        "--rdzv-id", job.run_id,
        "--rdzv-conf", f"timeout={max(1, round(job.timeout))}",
        "--max-restarts", "0",
        *(["--module"] if module else []),
        "--",
        # torchrun replaces ${local_rank} in arguments, and two dollar signs by one.
        *(word.replace("$", "$$") for word in script),
    ]  # fmt: skip
