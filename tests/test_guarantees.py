"""Every guarantee is proved by a test that exists."""

import ast
import re

import pytest

from tests.sources import ROOT, tree

NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`")
PROMISES = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")


@pytest.mark.medium
@pytest.mark.parametrize(("file", "test"), sorted(set(NAMED.findall(PROMISES))))
def test_a_test_that_proves_a_promise_exists(file: str, test: str) -> None:
    assert (ROOT / file).is_file()
    if test:
        assert test in {node.name for node in ast.walk(tree(ROOT / file)) if isinstance(node, ast.FunctionDef)}


def test_every_promise_names_its_test() -> None:
    rows = [
        line.split("|")
        for line in PROMISES.splitlines()
        if line.startswith("|") and not line.startswith(("| promised", "|---"))
    ]
    assert len(rows) > 20
    assert [row for row in rows if not NAMED.search(row[-2]) and "the same" not in row[-2]] == []
