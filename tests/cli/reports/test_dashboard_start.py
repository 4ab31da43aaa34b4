"""The dashboard's command line: what it refuses, and what it says."""

import socket
from pathlib import Path

import pytest

from keima.base.run_folder import LEDGER_NAME
from keima.cli.reports import dashboard


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the message with which the program refuses to start."""
    assert dashboard.main([str(argument) for argument in arguments]) == 2
    said = capsys.readouterr()
    assert not said.out
    return said.err


def test_a_run_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"there is no run runs/{tmp_path.name}x" in refusal(capsys, f"{tmp_path.name}x")


def test_without_names_all_runs_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there are no runs in runs/" in refusal(capsys)
    for name in ("second", "first"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / LEDGER_NAME).touch()
    assert [folder.name for folder in dashboard.parse([]).folders] == ["first", "second"]


def test_a_port_in_use_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in refusal(
            capsys, tmp_path, "--port", port
        )


def test_an_address_of_another_machine_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot listen on 192.0.2.1" in refusal(capsys, tmp_path, "--listen", "192.0.2.1")


@pytest.mark.parametrize(("flag", "value"), [("--port", "65536"), ("--port", "x"), ("--listen", "example.org")])
def test_wrong_flags_are_refused(capsys: pytest.CaptureFixture[str], flag: str, value: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        dashboard.main([flag, value])
    assert value in capsys.readouterr().err
