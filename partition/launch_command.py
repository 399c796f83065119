"""`hopline launch`: its arguments, and what they come to."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from hopline.partition.hosts import read_hosts
from hopline.partition.launch_plan import Plan
from hopline.partition.launcher import launch_hosts
from hopline.partition.manifest import PARTITION_FILE
from hopline.partition.part import load_partition
from hopline.partition.parts_here import parts_of_ranks
from hopline.partition.ssh import SshOptions
from hopline.pipes import cli

__all__ = ["NO_SCRIPT", "launch_command", "split_script"]

NO_SCRIPT = "there is no script; expected it after --: hopline launch --hosts FILE -- train.py"
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def split_script(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments of `hopline launch`, and after the first `--` those of the script.

    >>> split_script(["launch", "--hosts", "hosts.txt", "--", "train.py", "--", "x"])
    (['launch', '--hosts', 'hosts.txt'], ['train.py', '--', 'x'])
    """
    words = list(arguments)
    if words[:1] != ["launch"] or "--" not in words:
        return words, []
    place = words.index("--")
    return words[:place], words[place + 1 :]


def launch_command(script: list[str]) -> cli.Command:
    """The command, for a script and its arguments."""

    def run(options: argparse.Namespace) -> None:
        code = launch_hosts(make_plan(options, script))
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:  # whoever read it has gone; the interpreter's end is to be quiet
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if code:
            sys.exit(code)

    return cli.Command(
        "launch", "start a script on the ranks of several hosts, over ssh", _add_arguments, run
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "hopline launch --hosts FILE [options] -- (SCRIPT | -m MODULE) [argument ...]"
    add, here = parser.add_argument, sys.executable.replace("%", "%%")
    add(
        "--hosts",
        required=True,
        metavar="FILE",
        help="a host a line: address [slots=N] [port of its SSH server]",
    )
    add(
        "--parts",
        metavar="DIR",
        help="folder of the parts on each host; the script finds it in HOPLINE_PARTS",
    )
    add(
        "--nproc-per-host",
        type=_count,
        default=1,
        metavar="N",
        help="ranks on a host whose line has no slots (default: 1)",
    )
    add(
        "--port",
        type=_port,
        default=29500,
        metavar="N",
        help="where the ranks meet, on the first host (default: 29500)",
    )
    add(
        "--master-addr",
        metavar="ADDRESS",
        help="how other hosts reach the first (default: its address in the host file)",
    )
    add(
        "--max-restarts",
        type=_number,
        default=0,
        metavar="N",
        help="start all ranks again after a failure, so often (default: 0)",
    )
    add(
        "--python",
        default=sys.executable,
        metavar="PATH",
        help=f"Python on the hosts (default: {here})",
    )
    add(
        "--workdir",
        metavar="DIR",
        help="folder on the hosts in which the script runs (default: the current one)",
    )
    add(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="pass on a variable of the environment, or set it; may be repeated",
    )
    add(
        "--timeout",
        type=_some_seconds,
        default=180.0,
        metavar="S",
        help="seconds for all hosts to be ready (default: 180)",
    )
    add(
        "--grace",
        type=_seconds,
        default=10.0,
        metavar="S",
        help="seconds that ranks have to end before they are killed (default: 10)",
    )
    add("--ssh-config", metavar="FILE", help="configuration of ssh, instead of the user's own")
    add("--ssh-option", action="append", default=[], metavar="NAME=VALUE",
        help="option for ssh -o; may be repeated (host keys are checked in any case)")  # fmt: skip


def make_plan(options: argparse.Namespace, script: list[str]) -> Plan:
    """What the arguments ask for.

    Raises:
        ValueError: they do not go together, or what is here says that it cannot work.
        OSError: a file cannot be read.
    """
    if sys.platform == "win32":
        raise ValueError("hopline launch needs signals as of Linux or macOS; Windows has others")
    if not script or script == ["-m"]:
        raise ValueError(NO_SCRIPT)
    if any("\0" in word for word in script):
        raise ValueError("an argument of the script holds a NUL character")
    workdir, environment = options.workdir or str(Path.cwd()), _environment(options.env)
    names = [workdir, options.python, options.parts or "", options.master_addr or ""]
    for word in (*script, *environment.values(), *names):
        _check_text(word)
    hosts = read_hosts(options.hosts, options.nproc_per_host)
    world_size = sum(host.slots for host in hosts)
    parts = options.parts
    if parts is not None and (Path(parts).expanduser() / PARTITION_FILE).exists():
        # Where the parts are only on the hosts, these check it alone.
        manifest = load_partition(Path(parts).expanduser())
        parts_of_ranks(range(world_size), world_size, manifest.book())
    if options.ssh_config is not None and not Path(options.ssh_config).is_file():
        raise ValueError(f"{options.ssh_config}: no such file; expected a configuration of ssh")
    return Plan(
        hosts=hosts,
        script=script,
        environment=environment,
        workdir=workdir,
        python=options.python,
        parts=parts,
        port=options.port,
        master_addr=options.master_addr,
        max_restarts=options.max_restarts,
        timeout=options.timeout,
        grace=options.grace,
        ssh=SshOptions(options.ssh_config, tuple(options.ssh_option)),
    )


def _check_text(word: str) -> None:
    """Refuses bytes that are no text: what a host is told is JSON."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{word[:80]!r} is not UTF-8; expected text in all that goes to the hosts"
        ) from None


def _environment(words: list[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not VARIABLE.fullmatch(name):
            raise ValueError(f"--env is {word[:80]!r}; expected NAME or NAME=VALUE")
        if not equals:
            if name not in os.environ:
                raise ValueError(
                    f"--env names {name}, which the environment lacks; set it, or say {name}=VALUE"
                )
            value = os.environ[name]
        found[name] = value
    return found


def _number(text: str, least: int = 0, most: int = 1_000_000) -> int:
    if not (re.fullmatch(r"[0-9]{1,9}", text) and least <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from {least} to {most}")
    return int(text)


def _count(text: str) -> int:
    return _number(text, 1, 4096)


def _port(text: str) -> int:
    return _number(text, 1, 65535)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return float(text)


def _some_seconds(text: str) -> float:
    found = _seconds(text)
    if found == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return found
