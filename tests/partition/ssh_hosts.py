"""SSH servers on this machine, each a "host" for `hopline launch`, and a client's configuration."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import asyncssh

PIECE = 1 << 16
# A shell starts what runs in the background deaf to Ctrl-C.
MAIN = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from hopline.partition.cli import main
sys.exit(main())
"""


class SshHosts:
    """Servers in a thread of their own, which run what they are asked to as sshd does.

    Attributes:
        ports: of the servers.
        config: configuration for the client.
        known_hosts: the servers' keys, as the client knows them.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.known_hosts = folder / "known_hosts"
        self.config = folder / "ssh_config"
        self.ports: list[int] = []
        self._connections = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(folder / "key")
        (folder / "key").chmod(0o600)
        self._allowed = asyncssh.import_authorized_keys(key.export_public_key().decode())
        self._servers = [self._do(self._serve()) for _ in range(count)]
        self.config.write_text(
            f"Host *\n  IdentityFile {folder / 'key'}\n  IdentitiesOnly yes\n  User tester\n"
            f"  UserKnownHostsFile {self.known_hosts}\n  GlobalKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking no\n  IdentityAgent none\n"
        )

    def _do(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=30)

    async def _serve(self):
        key = asyncssh.generate_private_key("ssh-ed25519")
        server = await asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[key], authorized_client_keys=self._allowed,
            process_factory=self._run, acceptor=self._connections.append,
            encoding=None, line_editor=False,
        )  # fmt: skip
        port = server.sockets[0].getsockname()[1]
        with self.known_hosts.open("a") as file:
            file.write(f"[127.0.0.1]:{port} {key.export_public_key().decode()}")
        self.ports.append(port)
        return server

    async def _run(self, process) -> None:
        child = await asyncio.create_subprocess_shell(
            process.command, stdin=-1, stdout=-1, stderr=-1, cwd=self.folder,
            env={k: os.environ[k] for k in ("PATH", "HOME", "PYTHONPATH") if k in os.environ},
        )  # fmt: skip
        task = asyncio.create_task(_feed(process.stdin, child.stdin))
        await asyncio.gather(
            _drain(child.stdout, process.stdout), _drain(child.stderr, process.stderr)
        )
        status = await child.wait()
        task.cancel()
        child.stdin.close()
        with contextlib.suppress(OSError, asyncssh.Error):
            process.exit(status)

    def close(self) -> None:
        async def close():
            for server in self._servers:
                server.close()
                await server.wait_closed()
            for connection in self._connections:
                connection.abort()
                await connection.wait_closed()
            # Programs end by themselves when their input does, and with them the tasks.
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            if rest:
                await asyncio.wait(rest, timeout=20)
            await asyncio.sleep(0.1)

        self._do(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def host_file(self, *slots: int) -> Path:
        path = self.folder / "hosts.txt"
        lines = [f"127.0.0.1 slots={n} {p}\n" for n, p in zip(slots, self.ports, strict=True)]
        path.write_text("".join(lines))
        return path

    def labels(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports]

    def command(self, *words: object, port: int, hosts: Path, options: tuple[str, ...] = ()):
        return [
            sys.executable, "-c", MAIN,
            "launch", "--hosts", str(hosts), "--ssh-config", str(self.config), "--port", str(port),
            "--env", "GLOO_SOCKET_IFNAME=lo", "--workdir", str(self.folder), *options, "--",
            *map(str, words),
        ]  # fmt: skip

    def start(self, *words: object, **options):
        return subprocess.Popen(
            self.command(*words, **options), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *words: object, timeout: float = 240, **options):
        """(exit code, standard output, error output) of a launch, as bytes."""
        process = self.start(*words, **options)
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
        return process.returncode, out, err


async def _feed(source, target) -> None:
    """Passes on input, and its end, also when that is the connection's."""
    with contextlib.suppress(OSError, asyncssh.Error):
        while piece := await source.read(PIECE):
            target.write(piece)
            await target.drain()
    with contextlib.suppress(OSError):
        target.close()


async def _drain(source, target) -> None:
    """Passes on output, and takes it in when no one wants it any more."""
    while piece := await source.read(PIECE):
        with contextlib.suppress(OSError, asyncssh.Error):
            target.write(piece)
            await target.drain()
