"""Plan: what `hopline launch` is to run where, and what that is for each host."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from itertools import accumulate

from hopline.partition.host_job import HostJob
from hopline.partition.hosts import Host
from hopline.partition.ssh import SshOptions

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """What is to run where.

    Attributes:
        hosts: the machines; the ranks of the first come first.
        script: a script, or "-m" and a module, and its arguments.
        environment: variables for the script.
        workdir: folder that it runs in, on each host.
        parts: folder of the parts, on each host.
        python: the interpreter on each host.
        port: where ranks meet, on the first host.
        master_addr: how the others reach that; None takes its address in the host file.
        max_restarts: how often all ranks are started again after a failure.
        timeout: seconds for all hosts to be ready.
        grace: seconds from SIGTERM to SIGKILL.
        patience: seconds without a sign of life from here, after which a host stops its ranks;
            there are six signs in that time.
        ssh: how to reach the hosts.
    """

    hosts: list[Host]
    script: list[str]
    environment: dict[str, str]
    workdir: str
    python: str
    parts: str | None = None
    port: int = 29500
    master_addr: str | None = None
    max_restarts: int = 0
    timeout: float = 180.0
    grace: float = 10.0
    patience: float = 60.0
    ssh: SshOptions = field(default_factory=SshOptions)

    def jobs(self, restart: int) -> list[HostJob]:
        """What each host runs.

        Args:
            restart: how often all ranks have been started before.
        """
        counts = [host.slots for host in self.hosts]
        firsts = accumulate([0, *counts[:-1]])
        run_id = secrets.token_hex(8)
        return [
            HostJob(
                node=node,
                nodes=len(self.hosts),
                slots=host.slots,
                first_rank=first,
                world_size=sum(counts),
                master_addr=self.master_addr or self.hosts[0].address,
                master_port=self.port,
                run_id=run_id,
                timeout=self.timeout,
                script=self.script,
                environment={**self.environment, "HOPLINE_RESTART_COUNT": str(restart)},
                workdir=self.workdir,
                parts=self.parts,
                patience=self.patience,
                grace=self.grace,
            )
            for node, (host, first) in enumerate(zip(self.hosts, firsts, strict=True))
        ]
