"""What users without a checkout have: one package, and one command."""

import json
import zipfile
from pathlib import Path

import pytest

from tests.installed import Installation, build_wheel, install

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this checkout."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Install the wheel."""
    return install(wheel, tmp_path_factory.mktemp("installed") / "environment")


def test_the_environment_gets_one_package_and_nothing_else_of_ours(installation: Installation) -> None:
    found = {path.name for path in installation.site_packages.iterdir() if path.suffix != ".pth"}
    assert found == {"keima", "keima-0.1.0.dist-info"}


def test_the_wheel_has_what_is_shipped_and_nothing_compiled(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("configs/quickstart.yaml", "models/go9.safetensors", "samples/README.md"):
        assert f"keima/shipped/{name}" in names
    assert not [name for name in names if name.endswith(".pyc")]


def test_it_is_imported_from_the_environment_and_works_in_the_present_folder(
    installation: Installation, tmp_path: Path
) -> None:
    program = "import json, keima.paths as p; print(json.dumps([str(p.PACKAGE), str(p.workspace()), str(p.CHECKOUT)]))"
    answer = installation.run("python", "-c", program, folder=tmp_path)
    assert json.loads(answer.stdout) == [str(installation.site_packages / "keima"), str(tmp_path), "None"]
