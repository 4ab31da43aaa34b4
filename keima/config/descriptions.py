"""What a setting is: its type, default and description, read from the sources of the sections.

Imports only the standard library, and none of the sections, which takes long; so ``--help`` is there at once.
"""

import ast
import functools
import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
MAIN = "keima.config.schema.Settings"


@dataclass(frozen=True)
class DeclaredSetting:
    """A setting as its class declares it.

    Attributes:
        kind: the type, as source text.
        default: the default, as source text; empty if the setting is required.
        text: the description: a sentence.
    """

    kind: str
    default: str
    text: str


def describe_setting(key: str, settings: str = MAIN) -> str:
    """Return the description of the setting with this dotted key, as a part of a sentence.

    Raises:
        KeyError: there is no such setting.
    """
    section, _, name = key.rpartition(".")
    text = declared_settings(section, settings)[name].text.rstrip(".")
    return text if re.match("[A-Z]{2}", text) else text[0].lower() + text[1:]


def declared_settings(section: str = "", settings: str = MAIN) -> dict[str, DeclaredSetting]:
    """Return the settings in a section, by name, in the order of the class.

    Args:
        section: its dotted key; empty for the top level.
        settings: the class of the top level, as module.Class.

    Raises:
        KeyError: there is no such section.
    """
    module, _, kind = settings.rpartition(".")
    classes = _read_classes(module)
    for name in section.split(".") if section else ():
        inner = classes[kind][name].kind
        kind = next((word for word in re.findall(r"\w+", inner) if word in classes), inner)
    return classes[kind]


@functools.cache
def _read_classes(module: str) -> dict[str, dict[str, DeclaredSetting]]:
    """Return the settings of each class of a module, and of the sections of a run, by the class's name."""
    own = HERE.parent.parent.joinpath(*module.split(".")).with_suffix(".py")
    found: dict[str, dict[str, DeclaredSetting]] = {}
    for path in dict.fromkeys((*sorted((HERE / "sections").glob("*.py")), HERE / "schema.py", own)):
        for kind in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(kind, ast.ClassDef):
                bases = [found.get(ast.unparse(base), {}) for base in kind.bases]
                inherited = {name: declared for base in bases for name, declared in base.items()}
                found[kind.name] = inherited | _own_settings(kind)
    return found


def _own_settings(kind: ast.ClassDef) -> dict[str, DeclaredSetting]:
    """Return the settings that a class declares itself."""
    return {
        field.target.id: DeclaredSetting(
            kind=ast.unparse(field.annotation),
            default=ast.unparse(field.value) if field.value else "",
            text=_text_of(text),
        )
        for field, text in zip(kind.body, kind.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def _text_of(node: ast.stmt) -> str:
    """Return the text that a statement consists of, on one line; empty if it is another statement."""
    value = node.value if isinstance(node, ast.Expr) else None
    text = value.value if isinstance(value, ast.Constant) else ""
    return " ".join(text.split()) if isinstance(text, str) else ""
