"""Machine code on disk that processes share: one of them compiles a function, and the others wait for its code.

Workers, matches and tests that begin together need the same functions at once, and the search takes a minute or more to
compile. A process locks one byte of a file in the cache (POSIX record locks): the lock ends with the process, a forked
child does not inherit it, and the system refuses to wait where processes would wait for each other in a circle.
"""

import fcntl
import functools
import hashlib
import os
from contextlib import nullcontext
from typing import Any

from numba.core import event
from numba.core.caching import FunctionCache

from keima.compilation.parts import loading_parts
from keima.paths import CACHE

COMPILE = "numba:compile"  # numba's event: a function that is not in the cache is compiled
WAIT = "keima:wait_for_compile"  # our event: another process is compiling the function; data is the function
BYTES = 2**62  # as many locks as a file has bytes: it stays empty


class SharedCache(FunctionCache):  # type: ignore[misc]
    """A function's code on disk. After a miss the caller holds the lock until it has saved the code.

    Args:
        function: what is compiled.
        is_part: whether it has no machine code; see ``keima.compilation.parts``.
    """

    def __init__(self, function: Any, *, is_part: bool = False) -> None:
        super().__init__(function)
        self._locked: list[int] = []
        self._loading = loading_parts if is_part else nullcontext

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code for a signature, or None if the caller must compile it."""
        code = self._load(sig, target_context)
        if code is None and self._lock(sig, target_context):
            code = self._load(sig, target_context)
            if code is not None:  # another process has compiled it while this one waited
                self.unlock()
        return code

    def _load(self, sig: Any, target_context: Any) -> Any:
        with self._loading(target_context):
            return super().load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store compiled code, also for the processes that wait for it."""
        try:
            super().save_overload(sig, data)
        finally:
            self.unlock()

    def unlock(self) -> None:
        """Let other processes compile the function that was locked last."""
        if self._locked:
            fcntl.lockf(_lock_file(), fcntl.LOCK_UN, 1, self._locked.pop())

    def _lock(self, sig: Any, target_context: Any) -> bool:
        key = f"{self.cache_path}/{self._impl.filename_base} {self._index_key(sig, target_context.codegen())!r}"
        place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) % BYTES
        try:
            _wait_for_lock(place, self._py_func)
        except OSError:  # a circle, or a file system without locks: compile beside the others
            return False
        self._locked.append(place)
        return True


def _wait_for_lock(place: int, function: Any) -> None:
    try:
        fcntl.lockf(_lock_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except BlockingIOError:
        with event.trigger_event(WAIT, data=function):
            fcntl.lockf(_lock_file(), fcntl.LOCK_EX, 1, place)


@functools.cache  # and never closed: closing it would end all locks of this process
def _lock_file() -> int:
    return os.open(CACHE / "compiling.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


class _UnlockFailed(event.Listener):  # type: ignore[misc]
    """Releases the lock of a function that cannot be compiled, so that no process waits for it."""

    def on_start(self, event: Any) -> None:
        """Do nothing: the lock was taken when the code was missing."""

    def on_end(self, event: Any) -> None:
        cache = getattr(event.data["dispatcher"], "_cache", None)
        if event._exc_details and isinstance(cache, SharedCache):  # event.is_failed says the opposite (numba 0.68)
            cache.unlock()


event.register(COMPILE, _UnlockFailed())
