"""What a transport through a seat adds to the contract of all transports: one object for all, and the end of a seat."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from keima.cluster.ssh.errors import Unreachable
from tests.cluster.ray.nodes import ON_RAY, Seats, ray_seats

pytestmark = ON_RAY


@pytest.fixture(scope="module")
def seats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seats]:
    with ray_seats(tmp_path_factory.mktemp("nodes")) as made:
        yield made


def test_a_file_is_one_object_for_all_seats(seats: Seats) -> None:
    from keima.cluster.ray.transport import KEPT_OBJECTS, SharedObjects

    objects, model = SharedObjects(), bytes(10**6)
    first = objects.of(model)
    assert objects.of(model) == first
    assert objects.of(bytes(bytearray(10**6))) == first  # equal content, another object here
    for number in range(KEPT_OBJECTS):
        assert objects.of(bytes([number + 1]) * 10**6) != first
    assert objects.of(model) != first


def test_the_end_of_a_seat_is_unreachable_at_once(seats: Seats, tmp_path: Path) -> None:
    transport = seats.transport(tmp_path / "root")
    transport.put(b"x", "a")
    seats.kill()
    with pytest.raises(Unreachable, match="worker1: its seat has ended"):
        for _ in range(100):
            transport.names("a")
    assert seats.ended
