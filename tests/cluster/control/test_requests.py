"""Requests to a running Coach, and its answers."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keima.base.run_lock import RunLocked
from keima.cluster.control.requests import (
    NoCoach,
    NotAnswered,
    PendingRequest,
    Request,
    RequestAnswer,
    RequestInbox,
    ask_coach,
    is_coach_running,
    read_coach_facts,
)
from keima.config.sections.workers import WorkerSettings
from tests.sources import ROOT

CONFIG = """\
run: {name: cluster, iterations: 1}
game: {name: tic_tac_toe}
distributed:
  enabled: true
  workers:
    - {host: worker1.example.com, user: me}  # in the cellar
    - {host: worker2.example.com, user: me}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "control"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def inbox(folder: Path, config: Path) -> Iterator[RequestInbox]:
    opened = RequestInbox(folder, run=folder.parent / "run", config=config)
    yield opened
    opened.close()


def beside(serve: Callable[[], object]) -> Callable[[float], None]:
    """Return a replacement for sleeping in ``ask``: what the Coach does meanwhile."""
    return lambda seconds: (serve(), None)[1]


def drop(folder: Path, content: str | bytes, *, name: str = "0123456789abcdef") -> Path:
    path = folder / f"{name}.request"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / f"{name}.answer"


def answer_in(path: Path) -> RequestAnswer:
    return RequestAnswer.model_validate_json(path.read_bytes())


def test_a_request_is_carried_out_and_answered(inbox: RequestInbox, folder: Path) -> None:
    answer = ask_coach(
        Request(command="restart", worker="worker1"),
        folder,
        sleep=beside(lambda: inbox.answer_requests(lambda r: f"{r.command} {r.worker}")),
    )
    assert answer == RequestAnswer(ok=True, text="restart worker1")


def test_an_answered_request_leaves_no_file(inbox: RequestInbox, folder: Path) -> None:
    before = sorted(folder.iterdir())
    ask_coach(Request(command="status"), folder, sleep=beside(lambda: inbox.answer_requests(lambda r: "")))
    assert sorted(folder.iterdir()) == before


def test_a_machine_arrives_as_it_was_described(inbox: RequestInbox, folder: Path) -> None:
    machine = WorkerSettings(host="new.example.com", user="me", gpu_ids=(0, 1), env={"A": "b"})
    seen: list[Request] = []
    ask_coach(
        Request(command="add", machine=machine),
        folder,
        sleep=beside(lambda: inbox.answer_requests(lambda r: seen.append(r) or "")),
    )  # type: ignore[func-returns-value]
    assert seen[0].machine == machine


def test_several_requests_are_answered_separately(inbox: RequestInbox, folder: Path) -> None:
    answers = [
        drop(folder, Request(command="stop", worker=f"w{n}").model_dump_json(), name=f"{n:016x}") for n in range(5)
    ]
    inbox.answer_requests(lambda request: request.worker)
    assert [answer_in(path).text for path in answers] == [f"w{n}" for n in range(5)]


def test_a_failure_is_answered_with_its_own_message(inbox: RequestInbox, folder: Path) -> None:
    def refuse(request: Request) -> str:
        raise ValueError("there is no worker7")

    answer = ask_coach(
        Request(command="restart", worker="worker7"), folder, sleep=beside(lambda: inbox.answer_requests(refuse))
    )
    assert answer == RequestAnswer(ok=False, text="there is no worker7")


def test_not_even_a_bug_ends_the_coach(inbox: RequestInbox, folder: Path) -> None:
    def fail(request: Request) -> str:
        raise KeyError("bug")

    answer = ask_coach(Request(command="status"), folder, sleep=beside(lambda: inbox.answer_requests(fail)))
    assert not answer.ok and "KeyError" in answer.text


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "\x00",
        b"\xff\xfe",
        "[" * 100_000,
        "x" * 1_000_000,
        '{"command": "shutdown"}',
        '{"command": "stop"}',
        '{"command": "add"}',
        '{"command": "add", "machine": {"host": "-oProxyCommand=evil"}}',
        '{"command": "status", "more": 1}',
        '{"command": "stop", "worker": 7}',
        json.dumps({"command": "stop", "worker": "w" * 1000}),
    ],
)
def test_a_malformed_request_is_answered_with_an_error(inbox: RequestInbox, folder: Path, content: str | bytes) -> None:
    answer = drop(folder, content)
    inbox.answer_requests(lambda request: pytest.fail("it was carried out"))
    assert not answer_in(answer).ok
    assert answer_in(answer).text.startswith(("the request is invalid: ", "the request cannot be read: "))


def test_a_request_that_is_no_file_is_answered_with_an_error(inbox: RequestInbox, folder: Path) -> None:
    (folder / "0123456789abcdef.request").symlink_to(folder / "nowhere")
    (folder / "1123456789abcdef.request").mkdir()
    inbox.answer_requests(lambda request: pytest.fail("it was carried out"))
    assert not answer_in(folder / "0123456789abcdef.answer").ok


def test_other_files_in_the_folder_are_left_alone(inbox: RequestInbox, folder: Path) -> None:
    names = ["notes.txt", "x.request", "0123456789abcdef.request.part"]
    for name in names:
        (folder / name).write_text("{}")
    assert inbox.take_requests() == []
    assert all((folder / name).exists() for name in names)


def test_a_request_is_handled_once(inbox: RequestInbox, folder: Path) -> None:
    drop(folder, '{"command": "status"}')
    assert inbox.take_requests() == [PendingRequest("0123456789abcdef", Request(command="status"))]
    assert inbox.take_requests() == []


def test_without_a_coach_no_request_is_written(folder: Path) -> None:
    with pytest.raises(NoCoach):
        ask_coach(Request(command="status"), folder)
    assert not folder.exists()


def test_a_coach_that_has_ended_counts_as_none(inbox: RequestInbox, folder: Path) -> None:
    assert is_coach_running(folder)
    inbox.close()
    assert not is_coach_running(folder)
    with pytest.raises(NoCoach):
        ask_coach(Request(command="status"), folder)


def test_a_coach_that_does_not_poll_is_waited_for_no_longer_than_requested(inbox: RequestInbox, folder: Path) -> None:
    with pytest.raises(NotAnswered, match=r"in 0\.3 s, and the request has been withdrawn"):
        ask_coach(Request(command="stop", worker="w"), folder, seconds=0.3)
    assert inbox.take_requests() == []


def test_a_caller_that_gives_up_is_told_that_the_request_was_received(inbox: RequestInbox, folder: Path) -> None:
    with pytest.raises(NotAnswered, match="has taken the request"):
        clock = map(float, itertools.count()).__next__
        ask_coach(
            Request(command="stop", worker="w"), folder, seconds=3.0, clock=clock, sleep=beside(inbox.take_requests)
        )


def test_a_coach_that_ends_before_it_polls_counts_as_none(inbox: RequestInbox, folder: Path) -> None:
    with pytest.raises(NoCoach, match="ended before it took"):
        ask_coach(Request(command="status"), folder, sleep=beside(inbox.close))
    assert not list(folder.glob("*.request"))


COACH = """
import sys, time
from pathlib import Path
from keima.cluster.control.requests import RequestInbox

folder = Path(sys.argv[1])
desk = RequestInbox(folder, run=Path("run"), config=Path("config.yaml"))
print("open", flush=True)
while True:
    desk.answer_requests(lambda request: f"done: {request.worker}")
    time.sleep(0.01)
"""


def test_a_coach_in_another_process_answers_until_it_is_killed(folder: Path) -> None:
    coach = subprocess.Popen([sys.executable, "-c", COACH, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert coach.stdout is not None and coach.stdout.readline() == "open\n"
        assert ask_coach(Request(command="restart", worker="worker1"), folder) == RequestAnswer(
            ok=True, text="done: worker1"
        )
        facts = read_coach_facts(folder)
        assert facts and facts.pid == coach.pid
    finally:
        coach.kill()
        coach.communicate()
    assert not is_coach_running(folder)
    assert read_coach_facts(folder) is None


@pytest.mark.medium
def test_a_second_coach_is_told_about_the_first(inbox: RequestInbox, folder: Path, config: Path) -> None:
    with pytest.raises(RunLocked, match=f"process {os.getpid()}, for "):
        RequestInbox(folder, run=Path("other"), config=config)


@pytest.mark.medium
def test_checking_the_lock_keeps_no_coach_from_starting(folder: Path, config: Path) -> None:
    RequestInbox(folder, run=folder, config=config).close()
    looking = (
        "import sys; from pathlib import Path; from keima.cluster.control.requests import is_coach_running\n"
        "print('looks', flush=True)\n"
        "while True: is_coach_running(Path(sys.argv[1]))"
    )
    line = [sys.executable, "-c", looking, str(folder)]
    others = [subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        assert [other.stdout.readline() for other in others if other.stdout] == 2 * ["looks\n"]
        for _ in range(200):
            RequestInbox(folder, run=folder, config=config).close()
    finally:
        for other in others:
            other.kill()
            other.communicate()


def test_a_new_coach_removes_only_requests_that_nobody_waits_for(folder: Path, config: Path) -> None:
    folder.mkdir()
    old, new = folder / "0123456789abcdef.request", folder / "1123456789abcdef.request"
    for path in (old, new):
        path.write_text('{"command": "status"}')
    os.utime(old, (0, 0))
    inbox = RequestInbox(folder, run=folder, config=config)
    assert [pending.id for pending in inbox.take_requests()] == [new.stem]
    inbox.close()


def test_only_this_user_may_put_requests_there(inbox: RequestInbox, folder: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
