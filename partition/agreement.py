"""Agreement: do the hosts of a run go together, and can they reach the first of them?"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

from hopline.partition.host_job import Versions
from hopline.partition.hosts import Host

__all__ = ["check_meeting_place", "compare"]


def check_meeting_place(hosts: Sequence[Host], master_addr: str | None) -> None:
    """Refuses a first host that the others cannot reach, as far as can be told from here.

    Args:
        hosts: all of them.
        master_addr: how the first is to be reached; None for its address in the host file.

    Raises:
        ValueError: they cannot.
    """
    address = master_addr or hosts[0].address
    others = [host.address for host in hosts if not _is_loopback(host.address)]
    if _is_loopback(address) and others:
        raise ValueError(
            f"ranks are to meet at {address}, which {others[0]} cannot reach; put another name of "
            "that machine into the host file, or name one with --master-addr"
        )
    if "%" in address:
        raise ValueError(f"ranks cannot meet at {address}; name an address with --master-addr")


def _is_loopback(address: str) -> bool:
    if address.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def compare(
    labels: Sequence[str], reports: Sequence[dict[str, Any]]
) -> tuple[tuple[int, str] | None, list[str]]:
    """A host that does not go with the first, and lesser differences.

    Args:
        labels: names of the hosts.
        reports: what each has said of itself: `versions` and `partition`.

    Returns:
        ((number of the host, why it is refused), or None; warnings).

    Example:
        >>> one = {"versions": {"hopline": "1", "torch": "2.9.0", "python": "3.11.7"},
        ...        "partition": None}
        >>> other = {**one, "versions": {**one["versions"], "hopline": "2"}}
        >>> compare(["a", "b"], [one, other])[0]
        (1, 'it has hopline 2, and a has hopline 1; all hosts need the same')
    """
    found: list[tuple[Versions, object]] = []
    for node, report in enumerate(reports):
        try:
            found.append((Versions(**report["versions"]), report["partition"]))
        except (KeyError, TypeError) as error:
            return (node, f"its report is not understood ({error!r})"), []
    versions, partition = found[0]
    warnings = []
    for node, (other, others_partition) in enumerate(found):
        for what, here, there in (
            ("hopline", versions.hopline, other.hopline),
            ("torch", *(v.torch.partition("+")[0] for v in (versions, other))),
            ("partition", partition, others_partition),
        ):
            if here != there:
                text = f"it has {what} {there}, and {labels[0]} has {what} {here}"
                return (node, f"{text}; all hosts need the same"), []
        for what, here, there in (
            ("torch", versions.torch, other.torch),
            ("Python", versions.python, other.python),
        ):
            if here != there:
                warnings.append(f"{labels[node]} has {what} {there}, and {labels[0]} has {here}")
    return None, warnings
