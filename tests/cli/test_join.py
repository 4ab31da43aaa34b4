"""``keima join`` and ``keima crowd`` as their users type them."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from keima.cli import crowd, join
from keima.cluster.http.client import DoorClient, DoorRefused
from keima.cluster.http.joining import CannotJoin, RunChanged, write_membership
from keima.cluster.http.links import make_link, write_door_address
from keima.cluster.http.protocol import DoorAddress, Link, Registration
from keima.config.own_modules import keep_module
from tests.cluster.http.open_door import RUN_ID, open_door

LINK = f"https://example.org:8443/#{'s' * 24}.{'ab' * 32}"


def test_a_unit_for_systemd_does_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert join.main([LINK, "--systemd", "--cores", "2", "--name", "Anna B.", "--quiet-hours", "22:00-07:00"]) == 0
    unit = capsys.readouterr().out
    assert f"join '{LINK}' --cores 2 --name 'Anna B.' --quiet-hours 22:00-07:00" in unit
    assert "KillSignal=SIGINT" in unit and "--stay" not in unit
    assert join.main([LINK, "--systemd", "--stay", "0"]) == 0
    assert "--stay 0" in capsys.readouterr().out
    assert join.main([LINK, "--systemd", "--until", "8h"]) == 2
    assert "--quiet-hours" in capsys.readouterr().err


def test_what_is_no_link_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert join.main(["https://example.org/"]) == 2
    assert "copy all of it" in capsys.readouterr().err


def test_without_a_link_it_says_what_to_give(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert join.main(["--folder", str(tmp_path)]) == 2
    assert "give the link that you were given" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["25:00", "x", "-1h", "0"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SystemExit):
        join.main([LINK, f"--until={text}"])


def test_an_end_is_the_next_such_time() -> None:
    now = datetime.now()
    assert timedelta() < join.end_time("23:59") - now <= timedelta(days=1)
    assert timedelta(hours=7.9) < join.end_time("8h") - now < timedelta(hours=8.1)


def test_code_of_others_is_shown_and_not_run_without_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "othello_x.py"
    source.write_text("x = 1\n")
    name = keep_module(source)
    with open_door(tmp_path / "crowd", modules=(name,)) as door:
        assert join.main([str(door.link), "--folder", str(tmp_path / "join")]) == 2
    said = capsys.readouterr()
    assert f"{name}, 6 bytes" in said.out and "SHA-256" in said.out
    assert "--trust" in said.err


def test_other_code_of_keima_is_shown_and_not_fetched_without_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_door(tmp_path / "crowd", code="fedcba9876543210") as door:
        assert join.main([str(door.link), "--folder", str(tmp_path / "join")]) == 2
    said = capsys.readouterr()
    assert "fedcba9876543210" in said.out and "--update" in said.err


def test_a_wheel_that_is_not_the_announced_code_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_door(tmp_path / "crowd", code="fedcba9876543210") as door:
        assert join.main([str(door.link), "--folder", str(tmp_path / "join"), "--update"]) == 2
    assert capsys.readouterr().err
    assert not list((tmp_path / "join").glob("*/code/fedcba9876543210"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "crowd").mkdir(parents=True)
    (folder / "run.db").touch()
    return folder


def test_links_are_made_shown_and_revoked(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_door_address(run / "crowd", DoorAddress("https://example.org:8443", "ab" * 32))
    assert crowd.main(["link", str(run), "anna", "--days", "7"]) == 0
    link = capsys.readouterr().out.strip()
    assert crowd.main(["links", str(run)]) == 0
    shown = capsys.readouterr().out
    assert link in shown and "anna: valid until" in shown and "0 machines" in shown
    assert crowd.main(["revoke", str(run), "anna"]) == 0
    assert crowd.main(["links", str(run)]) == 0
    assert link not in (shown := capsys.readouterr().out) and "anna: revoked" in shown
    assert crowd.main(["revoke", str(run), "anna"]) == 2
    assert "no link 'anna' to revoke" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["link", "anna"], ["links"]], ids=["link", "links"])
def test_a_run_whose_door_was_never_open_says_how_to_open_it(
    run: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert crowd.main([words[0], str(run), *words[1:]]) == 2
    assert "--crowd" in capsys.readouterr().err


def test_a_link_is_not_made_for_longer_than_dates_go(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        crowd.main(["link", str(run), "anna", "--days", "1e9"])
    assert "up to 3650" in capsys.readouterr().err


def test_a_machine_that_came_by_a_link_is_let_in_after_that_has_expired(tmp_path: Path) -> None:
    with open_door(tmp_path / "crowd") as door:
        machine = Registration(name="anna", workers=1, key="k" * 43)
        with DoorClient(door.link) as client:
            client.register(machine)
        write_membership(tmp_path / "join" / "run", join.Membership(link=str(door.link), key=machine.key, name="anna"))
        make_link(door.folder, "everyone")  # the earlier one of this name expires
        with DoorClient(door.link) as client, pytest.raises(DoorRefused, match="expired"):
            client.read_run()
        with DoorClient(door.link, key=join.find_key(tmp_path / "join", str(door.link))) as client:
            assert client.read_run().run_id == RUN_ID
            client.register(machine)
            with pytest.raises(DoorRefused, match="expired"):
                client.register(machine.model_copy(update={"key": "o" * 43}))


@pytest.mark.parametrize("code", ["0123456789abcdef", "fedcba9876543210"])
def test_a_machine_joins_again_where_the_run_has_other_code(tmp_path: Path, code: str) -> None:
    with open_door(tmp_path / "crowd", code=code) as door:
        with DoorClient(door.link) as client:
            facts = client.read_run()
        membership = join.Membership(link=str(door.link), key="k" * 43, name="anna")
        before = facts.model_copy(update={"code": "0123456789abcdef"})
        if code == before.code:
            with pytest.raises(CannotJoin, match="join again later"):
                join.read_changed_run(before, membership)
        else:
            assert join.read_changed_run(before, membership) == facts


def test_ctrl_c_while_the_run_changes_its_code_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Changed:
        stop_requested = True

        def __init__(self, *values: object, **options: object) -> None:
            pass

        def run(self, *, until: object) -> bool:
            raise RunChanged("the run has new code")

    monkeypatch.setattr(join, "JoinedMachine", Changed)
    membership = join.Membership(link=LINK, key="k" * 43, name="anna", workers=("crowd-anna-1a2b-1",))
    facts, said = SimpleNamespace(run_id="run", code="0" * 16, modules=()), list[str]()
    ended = join.play(join.parse([LINK]), facts, membership, tmp_path, None, say=said.append)  # type: ignore[arg-type]
    assert ended == 130 and not any("joins again" in line for line in said)


@dataclass
class Ended:
    """A machine whose run has ended."""

    stop_requested: bool = False


def test_a_machine_waits_for_a_run_that_has_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(join, "STEP_SECONDS", 0.01)
    said = list[str]()

    def waits(link: Link, *, hours: float = 1.0, machine: Ended | None = None) -> join.RunFacts | None:
        membership = join.Membership(link=str(link), key="k" * 43, name="anna")
        return join.wait_for_run(facts, membership, machine or Ended(), hours, until=None, say=said.append)  # type: ignore[arg-type]

    with open_door(tmp_path / "crowd") as door:
        with DoorClient(door.link) as client:
            facts = client.read_run()
        assert waits(door.link) == facts
        assert "the run has stopped; this machine waits until" in said[0]
        assert not waits(door.link, machine=Ended(stop_requested=True))
        facts = facts.model_copy(update={"run_id": "0" * 16})
        assert not waits(door.link, hours=1e-5), "another run is there now"
    facts = facts.model_copy(update={"run_id": RUN_ID})
    assert not waits(door.link, hours=1e-5), "nobody answers"
