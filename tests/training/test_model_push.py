"""Models on their way to workers that have an older one."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.training.small_run import GAME, NETWORK
from tests.training.test_worker import Main
from training import model_push
from training.files import sha256_hex
from training.model_file import Model, decode_model, describe_model, encode_model
from training.model_push import ModelPush, WholeModelNeeded, asks_for_whole, encode_delta, expand_delta, forget_models, receive_model
from training.network import build_network
from training.worker_folder import WorkerFolder


@dataclass(frozen=True)
class File:
    """A published model."""

    version: int
    data: bytes
    sha256: str


def network_file(version: int, *, channels: int = 16, seed: int = 1) -> File:
    """A model; each version differs from the one before a little, as after some steps of training."""
    torch.manual_seed(seed)
    size = NETWORK | {"channels": channels}
    network = build_network(GAME, **size).eval()  # type: ignore[arg-type]
    torch.manual_seed(2)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(torch.randn_like(weight), alpha=version * 1e-4)
    data = encode_model(Model(description=describe_model(GAME, size, version), weights=network.state_dict()), GAME)
    return File(version, data, sha256_hex(data))


SEVEN, EIGHT, NINE = network_file(7), network_file(8), network_file(9)


@pytest.fixture
def folder(tmp_path: Path) -> WorkerFolder:
    return WorkerFolder(tmp_path).make()


def put(folder: WorkerFolder, *files: tuple[str, bytes]) -> None:
    for name, data in files:
        (folder.inbox / name).write_bytes(data)


def pushed(model: File, base: File | None) -> tuple[str, bytes]:
    file = ModelPush().file_for(model, base)
    return file.name, file.data


def in_inbox(folder: WorkerFolder) -> list[str]:
    return sorted(path.name for path in folder.inbox.glob("model*"))


def test_a_delta_and_its_base_make_the_very_bytes_of_the_whole_file() -> None:
    delta = encode_delta(EIGHT.data, SEVEN.data)
    assert delta is not None and len(delta) < 0.75 * len(EIGHT.data)
    assert expand_delta(delta, SEVEN.data) == EIGHT.data


def test_a_worker_that_has_an_older_model_is_sent_a_delta() -> None:
    name, data = pushed(EIGHT, SEVEN)
    assert name == "model-000008.from-000007.delta" and len(data) < len(EIGHT.data)


@pytest.mark.parametrize(
    "base",
    [None, network_file(7, channels=8), network_file(7, seed=5), NINE, EIGHT],
    ids=["no model", "another size", "nothing in common", "newer", "same"],
)
def test_whoever_has_no_base_that_helps_is_sent_the_whole_file(base: File | None) -> None:
    assert pushed(EIGHT, base) == ("model-000008.model", EIGHT.data)


def test_a_delta_is_made_once_for_all_workers_while_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    guarded: list[str] = []

    class Guard(AbstractContextManager[None]):
        def __enter__(self) -> None:
            guarded.append("in")

        def __exit__(self, *_: object) -> None:
            guarded.append("out")

    def count(data: bytes, base: bytes) -> bytes | None:
        assert guarded[-1] == "in"
        made.append(len(data))
        return encode_delta(data, base)

    monkeypatch.setattr(model_push, "encode_delta", count)
    push = ModelPush(guard=Guard())
    files = [push.file_for(NINE, base) for _ in range(50) for base in (SEVEN, EIGHT, None)]
    assert len(made) == 2 and len({file.name for file in files}) == 3
    assert guarded[-1] == "out"


def test_a_received_delta_becomes_the_whole_file_in_the_inbox(folder: WorkerFolder) -> None:
    put(folder, pushed(SEVEN, None), pushed(EIGHT, SEVEN))
    assert receive_model(folder, 8, EIGHT.sha256) == EIGHT.data == folder.model_path(8).read_bytes()
    assert receive_model(folder, 8, EIGHT.sha256) == EIGHT.data


def test_deltas_follow_one_another(folder: WorkerFolder) -> None:
    put(folder, pushed(SEVEN, None))
    for model, base in ((EIGHT, SEVEN), (NINE, EIGHT)):
        put(folder, pushed(model, base))
        assert receive_model(folder, model.version, model.sha256) == model.data
        forget_models(folder, model.version)
        assert in_inbox(folder) == [f"model-{model.version:06d}.model"]


def damaged(data: bytes) -> bytes:
    return data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]


INBOXES: dict[str, Callable[[], list[tuple[str, bytes]]]] = {
    "nothing": lambda: [],
    "a delta without its base": lambda: [pushed(EIGHT, SEVEN)],
    "a delta whose base is another": lambda: [("model-000007.model", network_file(7, seed=5).data), pushed(EIGHT, SEVEN)],
    "a delta whose base is of another size": lambda: [("model-000007.model", network_file(7, channels=8).data), pushed(EIGHT, SEVEN)],
    "a delta whose base is empty": lambda: [("model-000007.model", b""), pushed(EIGHT, SEVEN)],
    "a damaged delta": lambda: [pushed(SEVEN, None), ("model-000008.from-000007.delta", damaged(pushed(EIGHT, SEVEN)[1]))],
    "an empty delta": lambda: [pushed(SEVEN, None), ("model-000008.from-000007.delta", b"")],
    "a delta that is a model": lambda: [pushed(SEVEN, None), ("model-000008.from-000007.delta", EIGHT.data)],
    "a damaged file": lambda: [("model-000008.model", damaged(EIGHT.data))],
    "a file of another run": lambda: [("model-000008.model", network_file(8, seed=5).data)],
}


@pytest.mark.parametrize("inbox", INBOXES)
def test_what_does_not_make_the_model_is_no_model_and_the_whole_file_is_asked_for(folder: WorkerFolder, inbox: str) -> None:
    put(folder, *INBOXES[inbox]())
    with pytest.raises(WholeModelNeeded) as error:
        receive_model(folder, 8, EIGHT.sha256)
    assert asks_for_whole(str(error.value), 8)
    assert not asks_for_whole(str(error.value), 80) and not asks_for_whole(str(error.value), 7)
    put(folder, pushed(EIGHT, None))
    assert receive_model(folder, 8, EIGHT.sha256) == EIGHT.data


def test_newer_models_in_the_inbox_are_not_forgotten(folder: WorkerFolder) -> None:
    put(folder, pushed(SEVEN, None), pushed(EIGHT, SEVEN), pushed(EIGHT, None), pushed(NINE, EIGHT), ("note", b""))
    forget_models(folder, 8)
    assert in_inbox(folder) == ["model-000008.model", "model-000009.from-000008.delta"]


def test_a_worker_changes_over_by_a_delta(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=2)
    put(main.folder, pushed(SEVEN, None))
    main.assign(model_version=7, model_sha256=SEVEN.sha256)
    worker = main.worker()
    main.play(worker)
    assert worker.model_version == 7
    put(main.folder, pushed(EIGHT, SEVEN))
    main.assign(model_version=8, model_sha256=EIGHT.sha256, granted=4)
    main.play(worker)
    assert (worker.model_version, worker.error) == (8, "")
    assert decode_model(main.folder.model_path(8).read_bytes()).model_version == 8
    assert in_inbox(main.folder) == ["model-000008.model"]


def test_a_worker_that_cannot_use_a_delta_says_so_plays_on_and_takes_the_whole_file(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=2)
    put(main.folder, pushed(SEVEN, None))
    main.assign(model_version=7, model_sha256=SEVEN.sha256)
    worker = main.worker()
    main.play(worker)
    put(main.folder, pushed(NINE, EIGHT))
    main.assign(model_version=9, model_sha256=NINE.sha256, granted=4)
    main.play(worker)
    worker.beat("error")
    heartbeat = main.folder.read_heartbeat()
    assert heartbeat and asks_for_whole(heartbeat.error, 9)
    assert heartbeat.model_version == 7 and heartbeat.finished == 4
    put(main.folder, pushed(NINE, None))
    main.play(worker)
    assert (worker.model_version, worker.error) == (9, "")
