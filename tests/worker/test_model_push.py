"""Models on their way to workers that have an older one."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

import pytest
import torch

from keima.networks.files import delta as delta_files
from keima.networks.files.container import Content, decode_content
from keima.networks.files.delta import encode_delta
from keima.networks.files.heading import stored_sha256
from keima.networks.files.model import Model, decode_model, describe_model, encode_model
from keima.networks.network import build_network
from keima.worker.model_inbox import ModelInbox
from keima.worker.model_push import ModelPush, PublishedModel, WholeModelNeeded, asks_for_whole_model
from keima.worker.worker_folder import WorkerFolder
from tests.small_run import GAME, NETWORK
from tests.worker.test_worker import Main


def network_file(
    version: int, *, channels: int = 16, seed: int = 1, dtype: Literal["bfloat16", "float16"] = "bfloat16"
) -> PublishedModel:
    """Return a model; each version differs a little from the previous one, as after some steps of training."""
    torch.manual_seed(seed)
    size = NETWORK | {"channels": channels}
    network = build_network(GAME, **size).eval()  # type: ignore[arg-type]
    torch.manual_seed(2)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(torch.randn_like(weight), alpha=version * 1e-4)
    data = encode_model(
        Model(description=describe_model(GAME, size, version), weights=network.state_dict()), GAME, dtype=dtype
    )
    return PublishedModel(version=version, data=data, sha256=stored_sha256(data))


SEVEN, EIGHT, NINE = network_file(7), network_file(8), network_file(9)


@pytest.fixture
def folder(tmp_path: Path) -> WorkerFolder:
    return WorkerFolder(tmp_path).create_folders()


def put(folder: WorkerFolder, *files: tuple[str, bytes]) -> None:
    for name, data in files:
        (folder.inbox / name).write_bytes(data)


def pushed(model: PublishedModel, base: PublishedModel | None) -> tuple[str, bytes]:
    file = ModelPush().file_for(model, base)
    return file.name, file.data


def in_inbox(folder: WorkerFolder) -> list[str]:
    return sorted(path.name for path in folder.inbox.glob("model*"))


def holds(model: Model, file: PublishedModel) -> bool:
    wanted = decode_model(file.data)
    same = [torch.equal(tensor, wanted.weights[name]) for name, tensor in model.weights.items()]
    return model.description == wanted.description and all(same)


def test_a_worker_with_an_older_model_is_sent_a_delta() -> None:
    name, data = pushed(EIGHT, SEVEN)
    assert name == "model-000008.from-000007.delta" and len(data) < len(EIGHT.data)


@pytest.mark.parametrize(
    "base",
    [None, network_file(7, channels=8), network_file(7, seed=5), NINE, EIGHT],
    ids=["no model", "another size", "nothing in common", "newer", "same"],
)
def test_a_worker_without_a_useful_base_is_sent_the_whole_file(base: PublishedModel | None) -> None:
    assert pushed(EIGHT, base) == ("model-000008.model", EIGHT.data)


def test_a_delta_is_made_once_for_all_workers_while_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    guarded: list[str] = []

    class Guard(AbstractContextManager[None]):
        def __enter__(self) -> None:
            guarded.append("in")

        def __exit__(self, *_: object) -> None:
            guarded.append("out")

    def count(model: Content, base: Content) -> bytes | None:
        assert guarded[-1] == "in"
        made.append(model.header.model.model_version)
        return encode_delta(model, base)

    monkeypatch.setattr(delta_files, "encode_delta", count)
    push = ModelPush(guard=Guard())
    files = [push.file_for(NINE, base) for _ in range(50) for base in (SEVEN, EIGHT, None)]
    assert len(made) == 2 and len({file.name for file in files}) == 3
    assert guarded[-1] == "out"


def test_without_deltas_every_worker_is_sent_the_whole_file() -> None:
    assert ModelPush(deltas=False).file_for(EIGHT, SEVEN).data == EIGHT.data


def test_a_received_delta_becomes_the_model_and_a_whole_file_in_the_inbox(folder: WorkerFolder) -> None:
    put(folder, pushed(SEVEN, None), pushed(EIGHT, SEVEN))
    broken_off = ("model-000007.model.part", "model-000007.model.1a2b.part", "model-000007.from-000006.delta.part")
    for name in (*broken_off, "model-000009.model.part"):
        (folder.inbox / name).write_bytes(b"half")
    inbox = ModelInbox(folder)
    assert holds(inbox.receive_model(8, EIGHT.sha256), EIGHT)
    inbox.remove_other_models(8)
    assert in_inbox(folder) == ["model-000008.model", "model-000009.model.part"]
    assert decode_content(folder.model_path(8).read_bytes()).sha256 == EIGHT.sha256
    assert holds(ModelInbox(folder).receive_model(8, EIGHT.sha256), EIGHT)


def test_deltas_follow_one_another_even_if_the_worker_is_restarted(folder: WorkerFolder) -> None:
    put(folder, pushed(SEVEN, None))
    inbox = ModelInbox(folder)
    inbox.receive_model(7, SEVEN.sha256)
    for model, base in ((EIGHT, SEVEN), (NINE, EIGHT)):
        put(folder, pushed(model, base))
        assert holds(inbox.receive_model(model.version, model.sha256), model)
        inbox.remove_other_models(model.version)
        assert in_inbox(folder) == [f"model-{model.version:06d}.model"]
        inbox = ModelInbox(folder) if model is EIGHT else inbox


def test_a_delta_needs_no_file_of_a_model_in_memory(folder: WorkerFolder) -> None:
    put(folder, pushed(SEVEN, None))
    inbox = ModelInbox(folder)
    inbox.receive_model(7, SEVEN.sha256)
    folder.model_path(7).unlink()
    put(folder, pushed(EIGHT, SEVEN))
    assert holds(inbox.receive_model(8, EIGHT.sha256), EIGHT)


def test_a_damaged_file_does_not_block_a_delta(folder: WorkerFolder) -> None:
    put(folder, pushed(SEVEN, None), ("model-000008.model", damaged(EIGHT.data)), pushed(EIGHT, SEVEN))
    inbox = ModelInbox(folder)
    inbox.receive_model(8, EIGHT.sha256)
    inbox.remove_other_models(8)
    assert holds(ModelInbox(folder).receive_model(8, EIGHT.sha256), EIGHT)


def test_another_model_of_the_same_version_replaces_the_first(folder: WorkerFolder) -> None:
    other = network_file(7, seed=5)
    put(folder, pushed(SEVEN, None))
    inbox = ModelInbox(folder)
    inbox.receive_model(7, SEVEN.sha256)
    put(folder, pushed(other, None))
    assert holds(inbox.receive_model(7, other.sha256), other)


def damaged(data: bytes) -> bytes:
    return data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]


INBOXES: dict[str, Callable[[], list[tuple[str, bytes]]]] = {
    "nothing": lambda: [],
    "a delta without its base": lambda: [pushed(EIGHT, SEVEN)],
    "a delta whose base is another": lambda: [
        ("model-000007.model", network_file(7, seed=5).data),
        pushed(EIGHT, SEVEN),
    ],
    "a delta whose base is of another size": lambda: [
        ("model-000007.model", network_file(7, channels=8).data),
        pushed(EIGHT, SEVEN),
    ],
    "a delta whose base is empty": lambda: [("model-000007.model", b""), pushed(EIGHT, SEVEN)],
    "a damaged delta": lambda: [
        pushed(SEVEN, None),
        ("model-000008.from-000007.delta", damaged(pushed(EIGHT, SEVEN)[1])),
    ],
    "an empty delta": lambda: [pushed(SEVEN, None), ("model-000008.from-000007.delta", b"")],
    "a delta that is a model": lambda: [pushed(SEVEN, None), ("model-000008.from-000007.delta", EIGHT.data)],
    "a damaged file": lambda: [("model-000008.model", damaged(EIGHT.data))],
    "a file of another run": lambda: [("model-000008.model", network_file(8, seed=5).data)],
}


@pytest.mark.parametrize("inbox", INBOXES)
def test_a_delta_that_does_not_make_the_model_is_refused_and_the_whole_file_is_requested(
    folder: WorkerFolder, inbox: str
) -> None:
    put(folder, *INBOXES[inbox]())
    with pytest.raises(WholeModelNeeded) as error:
        ModelInbox(folder).receive_model(8, EIGHT.sha256)
    assert asks_for_whole_model(str(error.value), 8)
    assert not asks_for_whole_model(str(error.value), 80) and not asks_for_whole_model(str(error.value), 7)
    put(folder, pushed(EIGHT, None))
    assert holds(ModelInbox(folder).receive_model(8, EIGHT.sha256), EIGHT)


def test_newer_models_in_the_inbox_are_kept(folder: WorkerFolder) -> None:
    put(folder, pushed(SEVEN, None), pushed(EIGHT, SEVEN), pushed(EIGHT, None), pushed(NINE, EIGHT), ("note", b""))
    ModelInbox(folder).remove_other_models(8)
    assert in_inbox(folder) == ["model-000008.model", "model-000009.from-000008.delta"]


@pytest.mark.medium
def test_a_worker_switches_models_by_a_delta(tmp_path: Path) -> None:
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


def test_a_worker_that_cannot_use_a_delta_reports_it_continues_and_takes_the_whole_file(tmp_path: Path) -> None:
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
    assert heartbeat and asks_for_whole_model(heartbeat.error, 9)
    assert heartbeat.model_version == 7 and heartbeat.finished == 4
    put(main.folder, pushed(NINE, None))
    main.play(worker)
    assert (worker.model_version, worker.error) == (9, "")
