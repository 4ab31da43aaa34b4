"""Keima as an engine that analyses many positions of Go at once, by KataGo's parallel analysis protocol.

Queries and results are asynchronous: a query may ask for many positions, several are searched side by side, and each
result is written when it is there. Errors of a query are answered, and never end the engine.
"""

import gc
from collections.abc import Callable
from pathlib import Path

from keima.games.game import Game
from keima.networks.predictions import Predict
from keima.play.analysis.field_reader import FieldReader
from keima.play.analysis.query import Query, QueryDefaults, parse_query
from keima.play.analysis.report import describe_job
from keima.play.analysis.searches import Job, Searches
from keima.play.analysis.syntax import (
    ACTIONS,
    AnalysisHandshake,
    Fields,
    QueryError,
    error_response,
    format_line,
    parse_line,
    require_identity,
    warning_response,
)
from keima.play.gtp.predictions import PositionPredictions

WARM_UP_VISITS = 32


class AnalysisEngine:
    """Answers queries; see ``keima.play.line_reader.ConversationPartner``.

    Args:
        game: Go, of the size that the network knows.
        version: of the engine.
        model: what is known of the network, as ``query_models`` reports it.
        searches: where positions are searched.
        write: sends a line.
        defaults: what a query gets that does not say otherwise.
        predict: what the network says of the end of the game, if it does.
        finishes: whether the end of the input waits for all results.
    """

    def __init__(
        self,
        game: Game,
        *,
        version: str,
        model: Fields,
        searches: Searches,
        write: Callable[[str], None],
        defaults: QueryDefaults,
        predict: Predict | None = None,
        finishes: bool = True,
    ) -> None:
        self._game, self._searches, self._write_line = game, searches, write
        self._greeting, self._model, self._defaults = AnalysisHandshake(version), model, defaults
        self._predict, self._finishes = predict, finishes
        self._warm_up()

    @property
    def has_work(self) -> bool:
        """Whether positions wait or are being searched."""
        return not self._searches.are_over

    def handle_line(self, line: str, arrived: float) -> bool:
        """Execute a query; returns True, because none ends the conversation."""
        if not line:
            return True
        fields: Fields = {}
        try:
            fields = parse_line(line)
            if "action" in fields:
                self._act(fields)
            else:
                self._submit(fields)
        except QueryError as error:
            self._write(error_response(error, fields))
        return True

    def advance(self) -> None:
        """Search until the next call of the network has been made, and report what is due."""
        done, running = self._searches.advance()
        for job in done:
            self._write(describe_job(self._game, job, during=False))
        for job in running:
            if job.is_report_due():
                self._write(describe_job(self._game, job, during=True))

    def close(self) -> None:
        """Finish all searches, as the input has ended."""
        while self._finishes and self.has_work:
            self.advance()

    def _warm_up(self) -> None:
        """Do everything once, so that code is compiled before the clock of a query runs, and freeze long-lived objects
        for the garbage collector.
        """
        size = self._game.options["size"]
        stones = {"moves": [], "initialStones": [["B", "C3"]], "avoidMoves": [{"player": "B", "moves": ["D4"]}]}
        wanted = dict.fromkeys(("includePolicy", "includeOwnership", "includeMovesOwnership"), True)
        board = {"rules": "chinese", "boardXSize": size, "boardYSize": size, "maxVisits": WARM_UP_VISITS}
        query = parse_query(self._game, {"id": "", **stones, **wanted, **board}, self._defaults)
        self._search(query)
        while self.has_work:
            for job in self._searches.advance()[0]:
                describe_job(self._game, job, during=False)
        gc.collect()
        gc.freeze()

    def _write(self, response: Fields) -> None:
        self._write_line(format_line(response))

    def _submit(self, fields: Fields) -> None:
        query = parse_query(self._game, fields, self._defaults)
        for name, text in query.warnings:
            self._write(warning_response(text, name, fields))
        self._search(query)

    def _search(self, query: Query) -> None:
        for position in query.positions:
            predictions = PositionPredictions(self._game, self._predict) if self._predict else None
            self._searches.submit(Job(query=query, position=position, predictions=predictions))

    def _act(self, fields: Fields) -> None:
        require_identity(fields)
        action = fields["action"]
        if action not in ACTIONS:
            raise QueryError(f"there is no action {action!r}; there are {', '.join(ACTIONS)}", field="action")
        if action == "query_version":
            self._write(self._greeting.answer(fields) or fields)
        elif action == "query_models":
            self._write(fields | {"models": [self._model]})
        elif action == "clear_cache":
            self._write(fields)  # evaluations are kept in trees alone, and these end with their searches
        else:
            self._terminate(fields)

    def _terminate(self, fields: Fields) -> None:
        """End searches, which respond with what they have found."""
        named, turns = fields.get("terminateId"), FieldReader(fields=fields).wholes("turnNumbers")
        if fields["action"] == "terminate" and not isinstance(named, str):
            raise QueryError("terminate needs the terminateId of queries, which is a string", field="terminateId")

        def is_ended(job: Job) -> bool:
            is_named = fields["action"] == "terminate_all" or job.query.identity == named
            return is_named and (turns is None or job.position.turn in turns)

        self._write(fields)
        for job in self._searches.drop(is_ended):
            self._write(describe_job(self._game, job, during=False))


def describe_model(path: Path, *, version: int, max_batch: int) -> Fields:
    """Return what ``query_models`` reports of a network."""
    return {
        "name": path.name,
        "internalName": path.stem,
        "maxBatchSize": max_batch,
        "usesHumanSLProfile": False,
        "version": version,
        "usingFP16": "false",
    }
