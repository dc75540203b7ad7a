"""The server: loads the command, then forks for each that is asked for, until its own standard input ends."""

from __future__ import annotations

import gc
import io
import json
import os
import select
import signal
import socket
import sys

import stickyroute.app
import stickyroute.benchmark.demo
import stickyroute.live.preview
import stickyroute.simulator.cli
from stickyroute.cli import main


def serve(where: str) -> None:
    """Returns in a process that is to be the command; its arguments are in `sys.argv` then."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # watchers are waited for by nobody
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, who end the input
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(where)
    listener.listen(64)
    print("listening", flush=True)
    gc.collect()
    gc.freeze()
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:
            sys.exit(0)
        line, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            if watched(line):
                return
        line.close()


def watched(line: socket.socket) -> bool:
    """Start what is asked for on `line`, tell its number and how it ended. True in the new process."""
    begin, files, _, _ = socket.recv_fds(line, 4, 3)
    size = int.from_bytes(begin, "big")
    wanted = b""
    while len(wanted) < size:
        wanted += line.recv(size - len(wanted))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        line.close()
        become(json.loads(wanted), files)
        return True
    for file in (0, 1, 2, *files):
        os.close(file)
    line.sendall(b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    try:
        line.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    except OSError:
        pass  # nobody wants to know any more
    os._exit(0)


def become(wanted: dict[str, object], files: list[int]) -> None:
    """Everything by which `python -m stickyroute` would differ from this process."""
    for place, file in enumerate(files):
        os.dup2(file, place)
        os.close(file)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", 0, closefd=False), "utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(
        os.fdopen(2, "wb", 0, closefd=False), "utf-8", "backslashreplace", write_through=True
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(wanted["env"])  # type: ignore[call-overload]
    os.chdir(wanted["folder"])  # type: ignore[arg-type]
    sys.argv = [os.path.join(os.path.dirname(stickyroute.app.__file__), "__main__.py"), *wanted["arguments"]]  # type: ignore[misc]
    gc.unfreeze()


if __name__ == "__main__":
    serve(sys.argv[1])
    sys.exit(main())
