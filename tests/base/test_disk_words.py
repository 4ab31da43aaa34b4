"""Messages about errors that the system reports on files."""

import errno
import os
from pathlib import Path

import pytest

from keima.base.disk_words import DISK_ERRORS, error_text
from keima.base.files import write_atomically


def test_a_file_that_cannot_be_written_is_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path, reason in (
        (tmp_path / "none" / "page.html", "create the folder if it is missing"),
        (tmp_path, "it is a folder"),
    ):
        with pytest.raises(OSError, match="Errno") as caught:
            write_atomically(path, b"page")
        said = error_text(caught.value)
        assert said.startswith(f"{path}: ") and reason in said
        assert "Errno" not in said and ".part" not in said


@pytest.mark.parametrize("number", [*DISK_ERRORS, errno.EIO])
def test_messages_have_no_error_number(number: int) -> None:
    said = error_text(OSError(number, os.strerror(number), "a name"))
    assert said.startswith("a name: ") and "Errno" not in said
    assert not error_text(OSError(number, os.strerror(number))).startswith("a name")


def test_other_errors_keep_their_message() -> None:
    for error in (ValueError("no such thing"), OSError("no network, and no number")):
        assert error_text(error) == str(error)
