"""Host file: the machines that `hopline launch` starts ranks on, a line each."""

from __future__ import annotations

import ipaddress
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Host", "read_hosts"]

LARGEST_FILE = 1 << 20  # bytes
MOST_SLOTS = 4096
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")  # also an alias of ssh's configuration
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}")
NUMBER = re.compile(r"[0-9]{1,9}")
EXPECTED = "expected `address [slots=N] [port]`, such as `node1 slots=4`"


@dataclass(frozen=True)
class Host:
    """A machine that ranks run on.

    Attributes:
        address: name, IPv4 or IPv6 address, or an alias of ssh's configuration.
        slots: ranks on it.
        port: where its SSH server listens; None takes ssh's own choice, by default 22.
        user: who to log in as; None takes ssh's own choice.
        label: what its output is marked with: the address, and the port where an address is there
            more than once.
        line: of the host file.
    """

    address: str
    slots: int
    port: int | None
    user: str | None
    label: str
    line: int


def read_hosts(path: str | os.PathLike[str], slots: int = 1) -> list[Host]:
    r"""Reads a host file.

    A line is `address [slots=N] [port]`, in either order after the address, as users of MPI and of
    DGL have them; `#` begins a comment. The port is that of the SSH server. (The port in DGL's
    ip_config.txt is one that DGL's servers listen on: leave it out.)

    Args:
        path: the file.
        slots: ranks on a host whose line does not say.

    Raises:
        ValueError: a line is anything else, a host is there twice, or there is none; names file
            and line.
        OSError: the file cannot be read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "hosts.txt"
        ...     _ = path.write_text("node1 slots=4  # the large one\nme@node2 2222\n")
        ...     for host in read_hosts(path):
        ...         print(host.label, host.slots, host.port, host.user)
        node1 4 None None
        node2 1 2222 me
    """
    path = Path(path)
    if path.is_dir() or not path.exists():  # a pipe is as good as a file
        raise FileNotFoundError(f"{path}: no such file; {EXPECTED}, a line each")
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise ValueError(f"{path}: has above {LARGEST_FILE} bytes; expected a host file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text ({error}); expected a host file") from error
    found: dict[tuple[str, int | None], Host] = {}
    for number, line in enumerate(text.split("\n"), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            host = _host(words, slots, number)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        key = host.address.lower(), host.port
        if key in found:
            raise ValueError(
                f"{path}, line {number}: {host.address} is in line {found[key].line} already; "
                "name a host once, and say slots=N for several ranks"
            )
        found[key] = host
    if not found:
        raise ValueError(f"{path}: names no host; {EXPECTED}, a line each")
    times = Counter(address for address, _ in found)
    return [
        host if times[host.address.lower()] == 1 else _with_port(host) for host in found.values()
    ]


def _with_port(host: Host) -> Host:
    address = f"[{host.address}]" if ":" in host.address else host.address
    label = f"{address}:{host.port or 22}"
    return Host(host.address, host.slots, host.port, host.user, label, host.line)


def _host(words: list[str], slots: int, line: int) -> Host:
    """The host that a line's words say."""
    user, address = _address(words[0])
    given: dict[str, int] = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals:
            name, value = "port", word
        if name not in ("slots", "port"):
            raise ValueError(f"{word[:80]!r} is not known here; {EXPECTED}")
        if name in given:
            raise ValueError(f"there is a second {name}, {word[:80]!r}; {EXPECTED}")
        most = MOST_SLOTS if name == "slots" else 65535
        if not (NUMBER.fullmatch(value) and 1 <= int(value) <= most):
            raise ValueError(
                f"{name} is {value[:80]!r}; expected a number from 1 to {most}: {EXPECTED}"
            )
        given[name] = int(value)
    return Host(address, given.get("slots", slots), given.get("port"), user, address, line)


def _address(word: str) -> tuple[str | None, str]:
    """User and address; nothing that ssh might take for one of its options passes."""
    before, at, address = word.rpartition("@")
    user = before if at else None
    if user is not None and not USER.fullmatch(user):
        raise ValueError(
            f"the user is {user[:80]!r}; expected letters, digits and any of _ . - @ \\, the first "
            "a letter, a digit or _"
        )
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
        if ":" not in address:
            raise ValueError(f"the address is {word[:80]!r}; expected brackets for IPv6 only")
    if address.count(":") > 1:
        try:
            ipaddress.IPv6Address(address)
        except ValueError as error:
            raise ValueError(f"the address is {address[:80]!r}, no IPv6 address: {error}") from None
        return user, address
    if ":" in address:
        raise ValueError(
            f"the address is {address[:80]!r}; expected the port of its SSH server after a space, "
            "and the number of ranks as slots=N"
        )
    if not NAME.fullmatch(address):
        raise ValueError(
            f"the address is {address[:80]!r}; expected a name or an IP address: letters, digits "
            "and any of _ . -, the first a letter, a digit or _"
        )
    return user, address
