"""Start of the workers that a command's options ask for."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from experiments.workers.backends import ANSWER_SECONDS, Backend, Dask, Processes, Ray
from experiments.workers.options import WorkerOptions
from fl_core.base.errors import InputError, require

_GREETINGS = {"ray": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]), "dask": b""}
"""Bytes that make a cluster answer: Ray's are HTTP/2's preface and empty settings; Dask's scheduler speaks first."""


@contextmanager
def start_workers(options: WorkerOptions) -> Iterator[Backend | None]:
    """Start the workers; None stands for this process. They end with the block.

    Raises:
        InputError: a value is not allowed, a package is missing, a cluster does not answer or has too few GPUs.
    """
    options.check()
    if options.backend == "processes" and options.jobs in (None, 1) and not options.gpus_per_job:
        yield None
        return
    backend = _make(options)
    try:
        yield backend
    finally:
        backend.close()


def _make(options: WorkerOptions) -> Backend:
    if options.backend == "processes":
        return Processes(options.jobs, options.gpus_per_job)
    if options.address and options.address != "auto":
        _require_answer(options.backend, options.address)
    if options.backend == "ray":
        return Ray(options.address, options.jobs, options.gpus_per_job)
    return Dask(options.address, options.jobs)


def _require_answer(backend: str, address: str) -> None:
    """Refuse an address where no cluster answers: the libraries would go on trying, some of them for ever.

    Raises:
        InputError: it is none, or nothing answers in time.
    """
    try:
        parts = urlsplit(address if "://" in address else f"tcp://{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None:
        raise InputError(f"address is '{address}', but it must read HOST:PORT.")
    try:
        with socket.create_connection((host, port), timeout=ANSWER_SECONDS) as connection:
            if parts.scheme != "tls" and not os.environ.get("RAY_USE_TLS"):
                connection.sendall(_GREETINGS[backend])
                require(bool(connection.recv(1)), f"address is '{address}', but no {backend} cluster answers there.")
    except OSError as error:
        how = f"within {ANSWER_SECONDS} s" if isinstance(error, TimeoutError) else f"({error.strerror or error})"
        raise InputError(f"address is '{address}', but no {backend} cluster answers there {how}.") from error
