"""Make docs/api.md, the page of the names of `import keima`, from their docstrings and from examples/.

python tools/api_page.py
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keima

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
SECTIONS = {  # title: what it is about, its example, its names
    "A game": (
        "The rules as functions of a numpy board; [add a game](add_a_game.md) leads through it.",
        "own_game.py",
        "load_game Game plain_game board_symmetries mirror_symmetries has_line has_line_through is_full check_game "
        "IllegalAction",
    ),
    "A game as kernels": (
        "Compiled functions over a row of 64-bit words: for chance, for scores on the last board, and for full speed. "
        "`keima new-game NAME --kernels` writes one.",
        "",
        "Rules legal_actions_kernel step_kernel query_kernel returns_kernel observe_kernel final_score_kernel "
        "chance_outcomes_kernel no_chance action_table inlined",
    ),
    "A network": (
        "Any PyTorch module with a policy and a value; [add a network](add_a_network.md) leads through it.",
        "own_network.py",
        "OwnNetwork make_value_head build_network load_network LoadedNetwork Line",
    ),
    "A worker": (
        "A class that plays, here and on a cluster; [write your own worker](custom_worker.md) says what it may change.",
        "own_worker.py",
        "Worker Assignment ParallelGames",
    ),
    "A training loop": (
        "The parts of a run, to put together otherwise; or whole runs by one call.",
        "training_loop.py",
        "train Learner ReplayWindow SelfPlay SearchSettings Evaluator ParallelZeroTrainer",
    ),
    "Search with an evaluator": (
        "Any function of a batch of observations can be searched with.",
        "own_evaluator.py",
        "Search Evaluate",
    ),
    "A match with Elo": (
        "Games between any players, from random openings with swapped colours.",
        "match.py",
        "play_match MatchResult Player SearchPlayer RandomPlayer UctPlayer rate_players PairResult Rating "
        "elo_difference play_game PlayedGame",
    ),
    "Games as arrays": (
        "Self-play to numpy, and the games of a run.",
        "self_play_arrays.py",
        "read_games RecordedGame GameRecord GameBatch batch_of",
    ),
    "Analysis": ("A network's best moves.", "analysis.py", ""),
    "A cluster": (
        "What `keima cluster` does, for scripts; see [running a cluster](operations.md).",
        "",
        "SSHConnector",
    ),
}
HEAD = """# Keima from Python

Made from the docstrings by `python tools/api_page.py`. `import keima` takes no time: names are imported on first use.
Shapes: B states, N observations, A actions, C planes of H rows and W columns, L plies, P players, V values. All names
that are not here are Keima's own, and may change.
"""


def page() -> str:
    """Return the page."""
    told = [name for _, _, names in SECTIONS.values() for name in names.split()]
    assert sorted(told) == sorted(keima.__all__), set(told) ^ set(keima.__all__)
    return "\n".join([HEAD, *(line for title in SECTIONS for line in section(title))])


def section(title: str) -> Iterator[str]:
    """Yield a section, part by part."""
    about, example, names = SECTIONS[title]
    yield f"## {title}\n\n{about}\n"
    if example:
        yield f"[examples/{example}](../examples/{example}):\n"
        yield f"```python\n{(ROOT / 'examples' / example).read_text(encoding='utf-8').strip()}\n```\n"
    for name in names.split():
        yield from entry(name, getattr(keima, name))


def entry(name: str, thing: Any) -> Iterator[str]:
    """Yield what is said of a name, and of its methods if it is a class."""
    yield f"### `keima.{name}{signature(thing)}`\n"
    yield from paragraphs(inspect.getdoc(thing) or "")
    if not inspect.isclass(thing) or issubclass(thing, Exception):
        return
    for attribute, member in vars(thing).items():
        is_method = inspect.isfunction(member) or isinstance(member, property)
        if attribute.startswith("_") or not is_method or not (doc := inspect.getdoc(member)):
            continue
        called = "" if isinstance(member, property) else signature(member)
        yield f"- `{attribute}{called}`: {joined(doc.partition(chr(10) * 2)[0])}"
    yield ""


def signature(thing: Any) -> str:
    """Return the parameters of something that can be called, without types."""
    if not callable(thing):
        return ""
    if inspect.isclass(thing) and issubclass(thing, tuple | Exception):
        return ""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    bare = [each.replace(annotation=each.empty) for each in found.parameters.values() if each.name != "self"]
    plain = (type(None), bool, int, float, str, tuple)
    shown = [
        each if each.default is each.empty or isinstance(each.default, plain) else each.replace(default=Omitted())
        for each in bare
    ]
    return str(found.replace(parameters=shown, return_annotation=found.empty))


class Omitted:
    """A default that says nothing to readers."""

    def __repr__(self) -> str:
        return "..."


def paragraphs(doc: str) -> Iterator[str]:
    """Yield a docstring's paragraphs as Markdown; those of Args and the like become lists."""
    for part in re.split(r"\n\n+", doc):
        if re.fullmatch(r"(Args|Attributes|Returns|Yields|Raises):", (first := part.partition("\n")[0])):
            items = re.split(r"\n    (?=\S)", part[len(first) :])
            yield f"{first}\n\n" + "\n".join(f"- {joined(item)}" for item in items if item.strip()) + "\n"
        elif part.startswith("    "):
            yield f"```\n{inspect.cleandoc(part)}\n```\n"
        else:
            yield f"{joined(part)}\n"


def joined(text: str) -> str:
    """Return text as one line, with Markdown's marks for code."""
    return " ".join(text.split()).replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
