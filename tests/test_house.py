"""The rules of the code that a program can check."""

import ast
import re
from pathlib import Path

from tests.sources import DOORS, ROOT, library, programs, python_files, relative, tree

LIBRARY = library()
OURS = [*LIBRARY, *programs()]
PYTHON = [*OURS, *python_files("tests")]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
KINDS = {".py", ".md", ".yaml", ".toml", ".txt", ".sh"}
TEXTS = [
    *(
        path
        for path in ROOT.iterdir()
        if path.is_file() and (path.suffix in KINDS or path.name in {"Makefile", "LICENSE", ".gitignore"})
    ),
    *(
        path
        for folder in ("keima", *DOORS, "benchmarks", "configs", "examples", "games", "tests", "docs")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in KINDS
    ),
    *(ROOT / ".ci").iterdir(),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def called_names(path: Path) -> set[str]:
    """Return the plain names that the file calls, such as ``print``."""
    calls = [node.func for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    return {function.id for function in calls if isinstance(function, ast.Name)}


def containing(pattern: str, paths: list[Path]) -> list[str]:
    """Return the names of the files in which the pattern is found."""
    return [relative(path) for path in paths if re.search(pattern, path.read_bytes().decode("utf-8"), re.MULTILINE)]


def test_library_code_prints_nothing() -> None:
    assert not [relative(path) for path in LIBRARY if "print" in called_names(path)]


def test_no_text_is_run_as_code() -> None:
    assert not [relative(path) for path in OURS if {"eval", "exec", "compile", "__import__"} & called_names(path)]


def test_nothing_is_unpickled() -> None:
    assert containing(r"\btorch\.(load|save)\(|allow_pickle=True", OURS) == ["keima/networks/files/weights_file.py"]
    assert not containing(r"\btorch\.load\((?!.*\bweights_only=True\))", OURS)
    assert not containing(r"allow_pickle=True", OURS)


def test_numeric_flags_have_a_range() -> None:
    assert not containing(r"type=(int|float)\b", OURS)  # keima.config.flags has the types that do


def test_text_files_end_with_one_newline() -> None:
    assert not containing(r"[^\n]\Z|\n\n\Z", TEXTS)


def test_text_files_have_unix_lines_without_trailing_spaces() -> None:
    assert not containing(r"[ \t\r]$", TEXTS)


def test_no_task_is_left_in_comments() -> None:
    assert not containing(r"#.*\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b", PYTHON)


def anchors(document: Path) -> set[str]:
    """Return the names under which a document's headings can be linked to."""
    headings = re.findall(r"^#+ +(.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_somewhere(document: Path, link: str) -> bool:
    """Return whether a link that is no web address finds its file and heading."""
    name, _, anchor = link.partition("#")
    target = document.parent / name if name else document
    return bool(re.match(r"[a-z]+:", link)) or (target.exists() and (not anchor or anchor in anchors(target)))


def test_links_between_documents_resolve() -> None:
    links = [(document, link) for document in DOCUMENTS for link in LINK.findall(document.read_text(encoding="utf-8"))]
    assert not [(relative(document), link) for document, link in links if not leads_somewhere(document, link)]
