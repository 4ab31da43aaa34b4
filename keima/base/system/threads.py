"""Threads: for the connections to other machines, where each waits on its own, and for what happens while this process
waits for a GPU. Nothing else uses threads.
"""

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

WAIT_SECONDS = 0.2  # a signal that arrives just before a wait begins does not end that wait
T = TypeVar("T")
R = TypeVar("R")


_turns: dict[str, threading.Semaphore] = {}
_turns_guard = threading.Lock()


@contextmanager
def wait_for_turn(name: str, at_once: int, seconds: float) -> Iterator[bool]:
    """Let at most ``at_once`` threads with the same name in at a time.

    Yields:
        Whether this thread's turn came within ``seconds``.
    """
    with _turns_guard:
        turns = _turns.setdefault(name, threading.Semaphore(at_once))
    came = turns.acquire(timeout=seconds)
    try:
        yield came
    finally:
        if came:
            turns.release()


def new_lock() -> AbstractContextManager[object]:
    """Return a lock, which one thread can hold at a time."""
    return threading.Lock()


class SteppingThread:
    """A thread that calls ``step`` repeatedly, and ends with the process.

    Args:
        name: the thread's name.
        step: does some work and returns for how many seconds to wait then.
        done: returns whether to end.
    """

    def __init__(self, name: str, step: Callable[[], float], done: Callable[[], bool]) -> None:
        self._step, self._done = step, done
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Take the next step now."""
        self._wake.set()

    def join(self, seconds: float) -> bool:
        """Wait for the thread to end; return whether it has."""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._done():
            delay = self._step()
            self._wake.wait(delay)
            self._wake.clear()


class StepThreads(Generic[R]):
    """Threads, each of which takes one step of its own on demand.

    They end with this object, or with the process.

    Args:
        steps: for each thread, what it calls.
        name: of the threads.
    """

    def __init__(self, steps: Sequence[Callable[[], R]], *, name: str) -> None:
        self._results: SimpleQueue[tuple[int, R | BaseException]] = SimpleQueue()
        self._requests: list[SimpleQueue[bool]] = [SimpleQueue() for _ in steps]  # False: end
        self.busy: set[int] = set()  # the numbers of the threads whose results have not been taken
        for number, step in enumerate(steps):
            arguments = (number, step, self._requests[number], self._results)
            threading.Thread(target=_step_on_request, args=arguments, name=f"{name}-{number}", daemon=True).start()
        weakref.finalize(self, _end_threads, self._requests)

    def begin_step(self, number: int) -> None:
        """Have a thread that is not busy take its next step."""
        self.busy.add(number)
        self._requests[number].put(True)

    def take_results(self) -> list[R]:
        """Return the results of the steps that have ended; if there are none yet, wait for one. Empty if no thread is
        busy.

        Raises:
            BaseException: what a step raised.
        """
        results: list[R] = []
        while self.busy and (not results or not self._results.empty()):
            try:
                number, result = self._results.get(timeout=WAIT_SECONDS)
            except Empty:
                continue
            self.busy.remove(number)
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        return results


def _step_on_request(
    number: int,
    step: Callable[[], R],
    requests: SimpleQueue[bool],
    results: "SimpleQueue[tuple[int, R | BaseException]]",
) -> None:
    while requests.get():
        try:
            results.put((number, step()))
        except BaseException as error:
            results.put((number, error))


def _end_threads(requests: Sequence[SimpleQueue[bool]]) -> None:
    for queue in requests:
        queue.put(False)


def prefetch(make: Callable[[int], R], numbers: range) -> Iterator[R]:
    """Yield ``make`` of each number, made on a thread while the caller works with the previous result.

    Close the iterator if you stop early: after that, no call of ``make`` is running.
    """
    left = iter(numbers)
    threads = StepThreads([lambda: make(next(left))], name="ahead")
    try:
        for number in numbers:
            if number == numbers.start:
                threads.begin_step(0)
            (made,) = threads.take_results()
            if number != numbers[-1]:
                threads.begin_step(0)
            yield made
    finally:
        while threads.busy:
            threads.take_results()


def run_in_parallel(work: Callable[[T], Iterator[R]], items: Sequence[T], *, at_once: int) -> Iterator[tuple[T, R]]:
    """Yield what ``work`` yields for each item, with the item, as it comes.

    The threads end with the process, so that an interrupted caller need not wait for them. After an error, or if the
    caller closes the iterator, no further item is begun.

    Args:
        work: is called in another thread.
        items: what to work on, in this order.
        at_once: the most items in work at a time.

    Raises:
        Exception: what ``work`` raised first.
    """
    results: SimpleQueue[tuple[T, R] | BaseException | None] = SimpleQueue()  # None: a thread has ended
    left, lock, stopped = iter(items), threading.Lock(), threading.Event()

    def serve() -> None:
        try:
            while not stopped.is_set():
                with lock:
                    item = next(left)
                for each in work(item):
                    results.put((item, each))
        except StopIteration:
            results.put(None)
        except BaseException as error:
            results.put(error)
        else:
            results.put(None)

    threads = min(at_once, len(items))
    for number in range(threads):
        threading.Thread(target=serve, name=f"parallel-{number}", daemon=True).start()
    try:
        while threads:
            try:
                found = results.get(timeout=WAIT_SECONDS)
            except Empty:
                continue
            if isinstance(found, BaseException):
                raise found
            if found is None:
                threads -= 1
            else:
                yield found
    finally:
        stopped.set()
