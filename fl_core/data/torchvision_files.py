"""Files of a torchvision dataset under a root: found, or fetched whole or not at all."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fl_core.base.errors import InputError, first_line
from fl_core.data.samples import NotObtained, unusable

SOCKET_TIMEOUT = 10.0
"""Seconds a download may stay silent; a machine without a network answers at once."""


@dataclass(frozen=True)
class TorchvisionFiles:
    """The files that a torchvision dataset class reads under its root, and the call that downloads them."""

    needed: tuple[str, ...]
    """Paths under the root; each may also lie there gzipped (`.gz`)."""
    download: Callable[[str], object]
    """Makes torchvision fetch, verify and unpack everything into the given root."""
    archives: tuple[str, ...] = ()
    """Archives that torchvision downloads and unpacks, under the root; one that the user put there is used."""
    archive_md5s: Callable[[], list[str]] = list
    """Their published checksums."""

    def find(self, root: Path, path: str) -> Path | None:
        """Find a file, plain or gzipped; None where it is missing."""
        plain = root / path
        gzipped = plain.with_name(plain.name + ".gz")
        return next((file for file in (plain, gzipped) if file.is_file()), None)

    def complete(self, root: Path) -> bool:
        """Return True if every needed file exists; none is opened."""
        return all(self.find(root, path) for path in self.needed)

    def present(self, root: Path) -> bool:
        """Return True if no download is needed: the files, or the archives with them, are in the root."""
        return self.complete(root) or (bool(self.archives) and all((root / path).is_file() for path in self.archives))

    def obtain(self, root: Path) -> None:
        """Complete the files: from archives in the root, else by downloading.

        Everything is fetched into a folder of its own inside the root and moved out once torchvision has verified
        it, so an interrupted download leaves nothing that a later call takes for the dataset.

        Raises:
            NotObtained: the files are missing and cannot be downloaded.
            InputError: an archive in the root is damaged.
        """
        if self.complete(root):
            return
        staging = self._staging_folder(root)
        try:
            self._link_archives(root, staging)
            with _short_socket_timeout():
                self.download(str(staging))
            _move_files(staging, root)
        except InputError:
            raise
        except Exception as error:  # torchvision, urllib, zipfile and tarfile each have their own
            raise NotObtained(f"it could not be downloaded ({first_line(error)})") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        if not self.complete(root):
            raise NotObtained("what was downloaded lacks some of its files")

    def _staging_folder(self, root: Path) -> Path:
        try:
            root.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=".download-", dir=root))
        except OSError as error:
            raise NotObtained(f"that folder cannot be written to ({error.strerror or error})") from error

    def _link_archives(self, root: Path, staging: Path) -> None:
        """Link the root's verified archives into the staging folder, so that torchvision does not download them."""
        from torchvision.datasets.utils import check_integrity

        for path, md5 in zip(self.archives, self.archive_md5s(), strict=True):
            archive = root / path
            if not archive.is_file():
                continue
            if not check_integrity(archive, md5):
                raise unusable(archive, "its md5 checksum is not the published one")
            link = staging / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(archive.resolve())


def _move_files(staging: Path, root: Path) -> None:
    for file in sorted(staging.rglob("*")):
        if file.is_file() and not file.is_symlink():
            target = root / file.relative_to(staging)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, target)


@contextmanager
def _short_socket_timeout() -> Iterator[None]:
    """Lower the process-wide socket timeout for the download, because torchvision passes none to urllib."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SOCKET_TIMEOUT)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
