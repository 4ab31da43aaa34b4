"""docs/add_a_network.md does what it says."""

from pathlib import Path

import pytest

from tests.pages import commands, follow, page, write_files

TEXT = page("add_a_network.md")


@pytest.mark.slow
@pytest.mark.trial
def test_the_page_leads_from_its_file_to_a_run(tmp_path: Path) -> None:
    assert [path.name for path in write_files(TEXT, tmp_path)] == ["transformer.py", "transformer.yaml"]
    smoke, *_ = commands(TEXT)
    assert "--smoke" in smoke
    follow(smoke, tmp_path)
    assert next((tmp_path / "runs" / "transformer-smoke" / "modules").glob("transformer-*.py"))


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.timeout(3600)
def test_every_command_of_the_page_works_as_it_stands(tmp_path: Path) -> None:
    write_files(TEXT, tmp_path)
    for command in commands(TEXT):
        follow(command, tmp_path, typed="quit\n", seconds=3000)
