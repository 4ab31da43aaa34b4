"""Turn numba's errors about an author's function into one sentence with file, line and remedy."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from keima.base.reports.text import printable_line

LONGEST = 160  # characters of numba's words
# By a pattern in numba's message: what is wrong, and what to do. Groups of the pattern stand for {1}, {2}.
REMEDIES = (
    (r"keima: ([^\n]+)", "{1}", "change what it returns"),
    (r"NameError: name '(\w+)'", "nothing is called {1}", "define it in this file"),
    (
        r"Untyped global name '(\w+)'[^\n]*\n?[^\n]*<class 'dict'>",
        "{1} is a dict",
        "use a tuple or a numpy array with numbers as indices",
    ),
    (
        r"Untyped global name '(\w+)'[^\n]*\n?[^\n]*<class 'list'>",
        "{1} is a long list",
        "make it a numpy array",
    ),
    (
        r"Untyped global name '(\w+)'[^\n]*\n?[^\n]*<class 'function'>",
        "{1} is a function of another file",
        "copy it into this file",
    ),
    (
        r"Untyped global name '(\w+)'[^\n]*\n?[^\n]*<class '([^']+)'>",
        "{1}, of type {2}, is not supported by numba",
        "use numbers, tuples and numpy arrays, and write a loop instead of a call",
    ),
    (r"dictobject|DictType", "it uses a dict", "use a tuple or a numpy array with numbers as indices"),
    (
        r"f-string|unicode_type|format spec",
        "it converts numbers to text",
        "leave text to move_names and render, and use numbers here",
    ),
    (
        r"Can't unify return type from the following types: ([^\n]+)",
        "it returns different types, {1}",
        "return numbers of one type everywhere",
    ),
    (
        r"Cannot unify ([^\n]+?) and ([^\n]+?) for '",
        "a value is sometimes {1} and sometimes {2}",
        "give every variable one type, and another name to the other",
    ),
    (
        r"variable '([\w.$]+)', have imprecise type: list\(undefined\)",
        "it cannot know what the list {1} will hold",
        "yield the moves, or fill an array such as np.zeros(9, np.int64)",
    ),
    (r"'with \(context manager\)|SETUP_WITH", "it has a with statement", "do that outside of the rules"),
    (r"exception_match|SETUP_FINALLY|try[ /.]*except", "it catches an error", "test with if before, instead of try"),
    (
        r"Unknown attribute '(\w+)' of type ([^\n]+)",
        "{2} has no {1} in numba",
        "write a loop over the board, or use another function of numpy",
    ),
    (r"unsupported NumPy function 'numpy\.([\w.]+)'", "numba has no np.{1}", "write a loop over the board"),
    (r"Function\(<function (\w*stack) ", "np.{1} takes a tuple here", "write np.{1}((a, b)) instead of np.{1}([a, b])"),
    (r"Function\(<built-in function array>\)", "np.array cannot join arrays", "use a tuple of them: (a, b)"),
    (
        r"Function\(<built-in function (?:getitem|setitem|delitem)>\)[^\n]*\n\s*>>> ([^\n]+)",
        "this index is unknown: {1}",
        "index with whole numbers and slices, and write a loop for more",
    ),
    (
        r"No implementation of function Function\(<[^>]*?(?:function|class) '?([\w.]+)[^\n]*\n\s*>>> ([^\n]+)",
        "{1} does not take these arguments, {2}",
        "use fewer arguments, or write a loop",
    ),
    (r"yield in a closure", "it has a generator within a call", "put [...] around it, or write a loop"),
    (r"IMPORT_NAME", "it imports", "import at the top of the file"),
    (r"UNPACK_EX", "it unpacks with *", "name each part"),
    (r"opcode \((\w+)\)", "it uses what Python calls {1}", "write it with plain assignments, ifs and loops"),
)
ASSERTION = "numba gives no reason, which it does for an index such as board[board != 0]"  # an assertion of its own
OTHERWISE = "write it with numbers, tuples, arrays, ifs and loops"


def explain_numba_error(
    error: BaseException, functions: Iterable[Callable[..., Any]], fallback: Callable[..., Any]
) -> str:
    """Explain numba's error in one of these functions in one sentence; ``fallback`` is the function that failed to
    compile.
    """
    text = str(error)
    what, remedy = _find_cause(text) or (_first_line(text) or ASSERTION, OTHERWISE)
    files = {function.__code__.co_filename for function in functions}
    places = (place for place in _find_places(text) if any(Path(file).name == place[0] for file in files))
    code = fallback.__code__
    file, line = next(places, (Path(code.co_filename).name, code.co_firstlineno))
    shown = re.sub(r"Literal\[(\w+)\]\([^)]*\)", r"\1", printable_line(what))
    shown = shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}..."
    return f"{file}, line {line}: numba cannot compile {fallback.__name__}: {shown}; {remedy}"


def _find_cause(text: str) -> tuple[str, str] | None:
    for pattern, what, remedy in REMEDIES:
        found = re.search(pattern, text)
        if found:
            groups = (found[0], *found.groups())
            return what.format(*groups), remedy.format(*groups)
    return None


def _find_places(text: str) -> list[tuple[str, int]]:
    """Return the names of files and lines in numba's message, the innermost first."""
    found = re.findall(r'File "([^"]+)", line (\d+)|(?:from|at) (\S+\.py) \((\d+)\)', text)
    return [(Path(one or other).name, int(line or number)) for one, line, other, number in found]


def _first_line(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("Failed in nopython")), "")
