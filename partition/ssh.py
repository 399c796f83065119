"""The ssh command for a host, and what its failures mean."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from hopline.partition.hosts import Host

__all__ = ["SshOptions", "explain", "find_ssh", "remote_command", "ssh_command"]

# The first value of an option counts for ssh: no configuration and no --ssh-option undoes these.
ALWAYS = (
    "BatchMode=yes",  # never ask
    "StrictHostKeyChecking=yes",  # never talk to a host that is not known
    "ServerAliveInterval=15",
    "ServerAliveCountMax=4",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "PermitLocalCommand=no",
    "ControlMaster=no",
    "RemoteCommand=none",
    "RequestTTY=no",
)

UNKNOWN = (
    "the host's key is not known: connect once by hand with `{by_hand}` and compare its "
    "fingerprint, or put what `ssh-keyscan {scan}` prints into ~/.ssh/known_hosts after checking it"
)
ADVICE = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED",
     "the host's key is another than the known one: find out why; if the host was set up anew, "
     "`ssh-keygen -R {address}` forgets the old key"),
    ("Host key verification failed", UNKNOWN),
    ("key is known for", UNKNOWN),
    ("Permission denied",
     "no key was accepted: passwords are not asked for; load a key with ssh-agent and ssh-add, "
     "and put its public half on the host with ssh-copy-id. `{by_hand}` must work without a "
     "question"),
    ("Could not resolve hostname", "the name is not known: check the host file"),
    ("Connection refused",
     "nothing listens at port {port}: the host file's number is the SSH server's port (that of "
     "DGL's ip_config.txt is not: leave it out)"),
    ("Connection timed out", "the host does not answer at port {port}: is it on, and reachable?"),
    ("No route to host", "the host cannot be reached: is it on, and in the same network?"),
)  # fmt: skip


@dataclass(frozen=True)
class SshOptions:
    """How to reach the hosts.

    Attributes:
        config: configuration file instead of the user's own.
        options: as of `ssh -o`; those that hopline sets itself stay.
        connect_timeout: seconds for a connection.
    """

    config: str | None = None
    options: Sequence[str] = ()
    connect_timeout: int = 20


def find_ssh() -> str:
    """The OpenSSH client.

    Raises:
        RuntimeError: there is none.
    """
    found = shutil.which("ssh")
    if found is None:
        raise RuntimeError(
            "there is no ssh in PATH; install the OpenSSH client (openssh-client), or start "
            "torchrun on each host by hand"
        )
    return found


def remote_command(python: str) -> str:
    """The command for the host's login shell."""
    if python.startswith("~/"):  # ssh starts in the home folder, and the quotes would hide it
        python = "./" + python[2:]
    return shlex.join([python, "-m", "hopline.partition.on_host"])


def ssh_command(ssh: str, host: Host, options: SshOptions, command: str) -> list[str]:
    """Arguments of ssh that run a command on a host."""
    words = [ssh, "-T", "-x", "-a"]
    if options.config is not None:
        words += ["-F", options.config]
    for option in (*ALWAYS, *options.options, f"ConnectTimeout={options.connect_timeout}"):
        words += ["-o", option]
    return [*words, *_where(host), "--", host.address, command]


def _where(host: Host) -> list[str]:
    return [
        *(["-p", str(host.port)] if host.port is not None else []),
        *(["-l", host.user] if host.user is not None else []),
    ]


def explain(host: Host, said: str) -> str:
    """What to do about what ssh said; nothing where that is not known."""
    for sign, advice in ADVICE:
        if sign.lower() in said.lower():
            return advice.format(
                address=f"[{host.address}]:{host.port}" if host.port else host.address,
                by_hand=shlex.join(["ssh", *_where(host), host.address]),
                scan=shlex.join([*(["-p", str(host.port)] if host.port else []), host.address]),
                port=host.port or 22,
            )
    return ""
