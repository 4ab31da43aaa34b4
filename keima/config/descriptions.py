"""What a setting means: the text below it in the sources of the sections, which import what takes long.

Imports only the standard library, so that programs start fast.
"""

import ast
import functools
from pathlib import Path

HERE = Path(__file__).parent


def describe_setting(key: str) -> str:
    """Return the description of the setting with this dotted key, as a part of a sentence.

    Raises:
        KeyError: there is no such setting.
    """
    fields = _read_fields()
    section = "Settings"
    *outer, name = key.split(".")
    for part in outer:
        section = fields[section, part][0]
    text = describe_field(section, name).rstrip(".")
    return text if text[:2].isupper() else text[0].lower() + text[1:]


def describe_field(section: str, name: str) -> str:
    """Return the description of a field of a section, which is a sentence.

    Raises:
        KeyError: the section has no such field.
    """
    return " ".join(_read_fields()[section, name][1].split())


@functools.cache
def _read_fields() -> dict[tuple[str, str], tuple[str, str]]:
    """Return the type and the description of each field, by its class and name."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for path in (HERE / "schema.py", *sorted((HERE / "sections").glob("*.py"))):
        for kind in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(kind, ast.ClassDef):
                for field, text in zip(kind.body, kind.body[1:], strict=False):
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                        annotation = ast.unparse(field.annotation).split(" | ")[0]
                        found[kind.name, field.target.id] = annotation, _text_of(text)
    return found


def _text_of(node: ast.stmt) -> str:
    """Return the text that a statement is; empty if it is none."""
    value = node.value if isinstance(node, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""
