"""The lines of KataGo's parallel analysis protocol (its Analysis_Engine.md): JSON objects, one a line.

Imports only the standard library, so that an engine can answer before it has loaded.
"""

import json
import math
from typing import Any

Fields = dict[str, Any]  # of a query or a response
PERSPECTIVES = BLACK, WHITE, SIDE_TO_MOVE = "BLACK", "WHITE", "SIDETOMOVE"
ACTIONS = ("query_version", "query_models", "clear_cache", "terminate", "terminate_all")


class QueryError(ValueError):
    """A query that is not carried out.

    Args:
        text: the reason.
        field: of the query.
    """

    def __init__(self, text: str, *, field: str | None = None) -> None:
        super().__init__(text)
        self.field = field


def parse_line(line: str) -> Fields:
    """Return a line's JSON object.

    Raises:
        QueryError: it is not one.
    """
    try:
        fields = json.loads(line, parse_float=_parse_finite, parse_constant=_parse_finite)
    except (ValueError, RecursionError) as error:
        raise QueryError(f"the line is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise QueryError("a query is a JSON object on one line")
    return fields


def _parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def require_identity(fields: Fields) -> str:
    """Return the ``id`` of a query.

    Raises:
        QueryError: it has none.
    """
    identity = fields.get("id")
    if not isinstance(identity, str):
        raise QueryError("every query needs an id, which is a string", field="id")
    return identity


def format_line(fields: Fields) -> str:
    """Return a response as a line."""
    return json.dumps(fields, separators=(",", ":"), allow_nan=False)


def error_response(error: QueryError, fields: Fields) -> Fields:
    """Return the response to a query that is not carried out."""
    return _remark("error", str(error), error.field, fields)


def warning_response(text: str, field: str, fields: Fields) -> Fields:
    """Return a remark on a query that is carried out."""
    return _remark("warning", text, field, fields)


def _remark(kind: str, text: str, field: str | None, fields: Fields) -> Fields:
    said = {kind: text} | ({} if field is None else {"field": field})
    return said | ({"id": fields["id"]} if isinstance(fields.get("id"), str) else {})


class AnalysisHandshake:
    """Answers queries for the version, which need no network.

    Args:
        version: of the engine.
    """

    def __init__(self, version: str) -> None:
        self._version = version

    def answer(self, fields: Fields) -> Fields | None:
        """Return the answer, or None: it is another query."""
        if fields.get("action") != "query_version" or not isinstance(fields.get("id"), str):
            return None
        return fields | {"version": self._version, "git_hash": "<omitted>"}

    def answer_line(self, line: str) -> str | None:
        """Return the complete answer to a line; None: the line must wait for the engine."""
        try:
            answer = self.answer(parse_line(line))
        except QueryError:
            return None
        return None if answer is None else f"{format_line(answer)}\n"

    def is_quit(self, line: str) -> bool:
        """Return whether a line ends the conversation: none does."""
        return False
