"""Locks on files and directories that the kernel releases when their owner dies, however it dies.

Works on files of this machine, and of a network file system that hands locks on.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from finegrained_rlhf.core.errors import ConfigError

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"
"""In a directory that is being written: who is at work there. Gone when it ended well; without meaning after a kill."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@dataclass
class _Held:
    """A directory lock of this process."""

    process: int
    descriptor: int

    def covers(self, path: Path) -> bool:
        """Whether the lock file that lies at `path` now is the one that this process holds."""
        return self.process == os.getpid() and _is_at(self.descriptor, path)


_HELD: dict[Path, _Held] = {}


@contextmanager
def locked_file(path: Path, *, wait: bool) -> Iterator[int]:
    """Hold a lock file; children that keep its descriptor go on holding it when this process is killed.

    Args:
        path: of the lock file, which stays.
        wait: until it is free.

    Raises:
        ConfigError: another process holds it, and `wait` is False.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        if not _lock(file.fileno(), path, wait=wait):
            raise ConfigError(f"another process is at work on it (it holds {path})")
        yield file.fileno()


@contextmanager
def locked_directory(directory: str | Path) -> Iterator[None]:
    """Be the only process that writes to a directory, which is made where it is absent.

    A process that holds the lock may take it again. Its children do not inherit it: they lock directories of their own.
    Afterwards the lock file is removed, and the directory too where nothing else is in it.

    Raises:
        ConfigError: another process holds it (nothing has been written then), or the directory cannot be made.
    """
    path = Path(directory).resolve() / LOCK_FILE
    before = _HELD.get(path)
    if before is not None and before.covers(path):
        yield
        return
    made = _make(path.parent)
    descriptor = _open_locked(path)
    _HELD[path] = _Held(os.getpid(), descriptor)
    try:
        yield
    finally:
        if before is None:
            _HELD.pop(path, None)
        else:
            _HELD[path] = before
        if _is_at(descriptor, path):
            path.unlink()
        os.close(descriptor)
        for folder in made:
            with suppress(OSError):  # not empty, as it should be
                folder.rmdir()


def is_locked(directory: str | Path) -> bool:
    """Whether a living process writes to a directory, this one included. Leaves no trace."""
    path = Path(directory).resolve() / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _lock(descriptor, path, wait=False, shared=True)
    finally:
        os.close(descriptor)


def _make(directory: Path) -> list[Path]:
    """Make a directory and its parents. Returns those that were absent, the innermost first."""
    absent = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output_dir: {directory} cannot be made ({error.strerror})") from None
    return absent


def _open_locked(path: Path) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigError(f"output_dir: {path.parent} cannot be written to ({error.strerror})") from None
        if not _lock(descriptor, path, wait=False):
            owner = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
            os.close(descriptor)
            raise ConfigError(
                f"output_dir: another process{f' ({owner})' if owner else ''} is writing to {path.parent}; wait for it "
                "to end, or name another directory"
            )
        if _is_at(descriptor, path):  # else its last owner removed it between opening and locking
            break
        os.close(descriptor)
    with suppress(OSError):  # a full disk holds no notice of the owner, but the lock
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}".encode(), 0)
    return descriptor


def _lock(descriptor: int, path: Path, *, wait: bool, shared: bool = False) -> bool:
    """Lock an open file. Returns False where another process holds it; a file system without locks locks nothing."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning("%s: this file system has no locks; see to it that one process writes here", path.parent)
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is the one that lies at `path`."""
    try:
        ours, there = os.fstat(descriptor), os.stat(path)
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
