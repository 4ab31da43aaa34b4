"""What a transport through a slot adds to the contract of all transports: one object for all, and the end of a slot."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from keima.cluster.ssh.errors import Unreachable
from tests.cluster.ray.nodes import ON_RAY, Seats, ray_seats

pytestmark = ON_RAY


@pytest.fixture(scope="module")
def slots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seats]:
    with ray_seats(tmp_path_factory.mktemp("nodes")) as made:
        yield made


def test_a_file_is_one_object_for_all_seats(slots: Seats) -> None:
    from keima.cluster.ray.transport import KEPT_OBJECTS, SharedObjects

    objects, model = SharedObjects(), bytes(10**6)
    first = objects.put_once(model)
    assert objects.put_once(model) == first
    assert objects.put_once(bytes(bytearray(10**6))) == first  # equal content, another object here
    for number in range(KEPT_OBJECTS):
        assert objects.put_once(bytes([number + 1]) * 10**6) != first
    assert objects.put_once(model) != first


def test_the_end_of_a_seat_is_unreachable_at_once(slots: Seats, tmp_path: Path) -> None:
    transport = slots.transport(tmp_path / "root")
    transport.put(b"x", "a")
    slots.kill()
    with pytest.raises(Unreachable, match="worker1: its slot has ended"):
        for _ in range(100):
            transport.list_files("a")
    assert slots.ended
