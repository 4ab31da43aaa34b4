"""Real wheels of installed packages, for tests of installations without an index."""

import zipfile
from importlib import metadata
from pathlib import Path

# Small packages without machine code, and without requirements except paramiko, which is not needed here.
PURE = ("scp", "sgfmill")


def make_wheels(folder: Path, *names: str) -> Path:
    """Make a folder with a wheel of each of these packages, without their requirements."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        package = metadata.distribution(name)
        folder_of_facts = next(
            str(file).partition("/")[0] for file in package.files or () if ".dist-info/" in str(file)
        )
        with zipfile.ZipFile(folder / f"{folder_of_facts.removesuffix('.dist-info')}-py3-none-any.whl", "w") as wheel:
            for file in package.files or ():
                if (
                    file.suffix == ".pyc"
                    or str(file).startswith("..")
                    or file.name in ("INSTALLER", "REQUESTED", "direct_url.json")
                ):
                    continue
                text = Path(str(file.locate())).read_bytes()
                if file.name == "METADATA":
                    text = b"".join(
                        line for line in text.splitlines(keepends=True) if not line.startswith(b"Requires-Dist")
                    )
                if file.name == "RECORD":
                    text = b"".join(
                        line
                        for line in text.splitlines(keepends=True)
                        if b".pyc" not in line and b"INSTALLER" not in line
                    )
                wheel.writestr(str(file), text)
    return folder
