import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fl_core.data import datasets, loaders

Attempts = list[tuple[str, float | None]]
"""Address and socket timeout of every attempted download."""


@pytest.fixture(autouse=True)
def attempts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Attempts]:
    """No network, no dataset of this machine, nothing cached; what was tried to be downloaded is recorded."""
    made: Attempts = []

    def refuse(request: urllib.request.Request, *args: object, **kwargs: object) -> None:
        made.append((request.full_url, socket.getdefaulttimeout()))
        raise urllib.error.URLError("no network in tests")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr(loaders, "DEBIAN_FASHION_MNIST", tmp_path / "no-debian-package")
    monkeypatch.delenv("DPILOT_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    datasets._load.cache_clear()
    yield made
    datasets._load.cache_clear()
