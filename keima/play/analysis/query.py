"""Queries for analyses, from their JSON objects to positions of Go."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from keima.games.game import Game, States
from keima.games.go.setup import make_position, with_player
from keima.play.analysis.field_reader import MOST_WHOLE, FieldReader, quote
from keima.play.analysis.syntax import BLACK, PERSPECTIVES, Fields, QueryError, require_identity
from keima.play.gtp.board import GtpBoard
from keima.play.gtp.rules import BONUSES, GtpRules, find_nearest_rules
from keima.play.gtp.syntax import GtpError

LEAST_SECONDS, MOST_SECONDS = 1e-6, 1e9
BOARD_FIELDS = ("boardXSize", "boardYSize")
REQUIRED = ("moves", "rules", *BOARD_FIELDS)
RESTRICTIONS = ("avoidMoves", "allowMoves")
READ = {
    *("id", *REQUIRED, *RESTRICTIONS, "initialStones", "initialPlayer", "komi", "whiteHandicapBonus"),
    *("analyzeTurns", "maxVisits", "analysisPVLen", "includeOwnership", "includeMovesOwnership", "includePolicy"),
    *("overrideSettings", "reportDuringSearchEvery", "priority", "priorities"),
}
SETTINGS_READ = {"reportAnalysisWinratesAs", "maxTime", "maxVisits"}
ONLY_FIRST = "moves are restricted in the position itself, not in those that follow, whatever untilDepth says"


@dataclass(frozen=True, kw_only=True)
class Position:
    """A position to analyse."""

    turn: int  # moves of the game before it
    state: States
    player: int  # to move
    priority: int
    allowed: tuple[int, ...] | None  # the only moves to consider; None: all


@dataclass(frozen=True, kw_only=True)
class Query:
    """A query for analyses."""

    identity: str
    positions: Sequence[Position]
    max_visits: int
    max_seconds: float  # for each position
    report_seconds: float | None  # between two reports during a search; None: only at the end
    perspective: str  # of PERSPECTIVES: whose winning chances and points are reported
    line_moves: int  # the most moves of a principal line after its first
    ownership: bool
    moves_ownership: bool
    policy: bool
    warnings: Sequence[tuple[str, str]]  # fields, and remarks on them


@dataclass(frozen=True, kw_only=True)
class QueryDefaults:
    """What a query gets that does not say otherwise."""

    max_visits: int
    most_visits: int  # as fit into a tree
    parallel: int  # positions that are searched side by side
    perspective: str = BLACK


def parse_query(game: Game, fields: Fields, defaults: QueryDefaults) -> Query:
    """Parse a query for analyses.

    Raises:
        QueryError: a field is missing, invalid, or asks for what the network cannot play.
    """
    identity, read = require_identity(fields), FieldReader(fields=fields)
    for name in sorted(set(fields) - READ):
        if fields[name] is not False:
            read.warn(name, f"{name} has no meaning here and is ignored")
    states = _play_moves(game, read)
    turns = read.wholes("analyzeTurns", most=len(states) - 1)
    turns = [len(states) - 1] if turns is None else turns
    priorities = read.wholes("priorities", least=-MOST_WHOLE)
    if priorities is None:
        priorities = [read.whole("priority", 0, least=-MOST_WHOLE)] * len(turns)
    elif len(priorities) != len(turns):
        raise read.fail("priorities", f"expected one for each of {len(turns)} turns, found {len(priorities)}")
    settings = _read_settings(read, defaults.perspective)
    return Query(
        identity=identity,
        positions=[
            _make_position(game, read, turn, states[turn], priority)
            for turn, priority in zip(turns, priorities, strict=True)
        ],
        max_visits=_read_visits(read, settings, defaults),
        max_seconds=settings.number("maxTime", least=LEAST_SECONDS, most=MOST_SECONDS) or MOST_SECONDS,
        report_seconds=read.number("reportDuringSearchEvery", least=0, most=MOST_SECONDS),
        perspective=settings.fields["reportAnalysisWinratesAs"],
        line_moves=read.whole("analysisPVLen", MOST_WHOLE),
        ownership=read.flag("includeOwnership"),
        moves_ownership=read.flag("includeMovesOwnership"),
        policy=read.flag("includePolicy"),
        warnings=read.warnings,
    )


def _play_moves(game: Game, read: FieldReader) -> list[States]:
    """Return the positions after each number of moves, from 0 on."""
    for name in REQUIRED:
        if name not in read.fields:
            raise QueryError(f"a query needs {name}", field=name)
    moves = read.plays(game, "moves")
    board = _begin_board(game, read, first_player=moves[0][0] if moves else 0)
    states = [board.state]
    for number, (player, action) in enumerate(moves, 1):
        try:
            board.play(player, action)
        except GtpError as error:
            move = f"{'BW'[player]} {game.action_name(action)}"
            raise QueryError(f"Illegal move {number}, {move}: {error}", field="moves") from None
        states.append(board.state)
    return states


def _begin_board(game: Game, read: FieldReader, *, first_player: int) -> GtpBoard:
    """Return the board before the moves."""
    size = int(game.options["size"])
    for name in BOARD_FIELDS:
        if read.whole(name, size) != size:
            raise read.fail(name, f"this network plays on {size} x {size} points, not on {read.fields[name]}")
    board, stones = GtpBoard(game), read.plays(game, "initialStones")
    black, white = ([point for player, point in stones if player == each] for each in (0, 1))
    if "initialPlayer" in read.fields:
        first_player = read.player("initialPlayer", read.fields["initialPlayer"])
    try:
        board.set_rules(_read_rules(read, board.rules), read.number("komi", least=-(size**2), most=size**2))
    except GtpError as error:
        raise read.fail("komi", str(error)) from None
    try:
        state = make_position(game, black, white, player=first_player)
        board.begin(state, handicap=len(black) if len(black) > 1 and not white else 0)
    except (ValueError, IndexError) as error:
        raise read.fail("initialStones", str(error)) from None
    return board


def _read_rules(read: FieldReader, trained: GtpRules) -> GtpRules:
    """Return the rules, as closely as the network plays them; it remarks on what is different."""
    given = read.fields["rules"]
    if not isinstance(given, str | dict):
        raise read.fail("rules", f"expected a name or an object, found {quote(given)}")
    try:
        rules, different = find_nearest_rules(given, trained)
    except GtpError as error:
        raise read.fail("rules", str(error)) from None
    for text in different:
        read.warn("rules", text)
    bonus = str(read.fields.get("whiteHandicapBonus", rules.handicap_bonus))
    if bonus not in BONUSES:
        raise read.fail("whiteHandicapBonus", f"expected {', '.join(BONUSES)}, found {quote(bonus)}")
    return replace(rules, handicap_bonus=bonus)


def _make_position(game: Game, read: FieldReader, turn: int, state: States, priority: int) -> Position:
    player = game.current_player(state)
    state = with_player(state, player)  # two passes do not end an analysis
    if game.terminal(state):
        raise read.fail("moves", f"the game is too long to analyse turn {turn}")
    return Position(
        turn=turn, state=state, player=player, priority=priority, allowed=_allowed_moves(game, read, state, player)
    )


def _allowed_moves(game: Game, read: FieldReader, state: States, player: int) -> tuple[int, ...] | None:
    """Return the only moves that a player may consider; None: all legal ones."""
    legal = set(game.legal_actions(state).tolist())
    allowed = set(legal)
    for name in RESTRICTIONS:
        for moves in _restricted_moves(game, read, name, player):
            allowed = allowed & moves if name == "allowMoves" else allowed - moves
        if not allowed:
            raise read.fail(name, "no move is left to consider")
    return None if allowed == legal else tuple(sorted(allowed))


def _restricted_moves(game: Game, read: FieldReader, name: str, player: int) -> Iterator[set[int]]:
    """Yield the sets of moves that a field allows or forbids to a player."""
    for each in read.items(name):
        if not isinstance(each, dict):
            raise read.fail(name, f"expected objects with player, moves and untilDepth, found {quote(each)}")
        part = FieldReader(fields=each, within=name)
        if part.whole("untilDepth", 1, least=1) > 1 and (name, ONLY_FIRST) not in read.warnings:
            read.warn(name, ONLY_FIRST)
        moves = {part.location(game, "moves", value) for value in part.items("moves")}
        if part.player("player", each.get("player")) == player:
            yield moves


def _read_settings(read: FieldReader, perspective: str) -> FieldReader:
    """Return the settings for this query alone; it remarks on those that are ignored."""
    given = read.fields.get("overrideSettings", {})
    if not isinstance(given, dict):
        raise read.fail("overrideSettings", f"expected an object, found {quote(given)}")
    if ignored := sorted(set(given) - SETTINGS_READ):
        read.warn("overrideSettings", f"these have no meaning here and are ignored: {', '.join(ignored)}")
    settings = FieldReader(fields={"reportAnalysisWinratesAs": perspective} | given, within="overrideSettings")
    whose = settings.fields["reportAnalysisWinratesAs"]
    if whose not in PERSPECTIVES:
        raise settings.fail("reportAnalysisWinratesAs", f"expected {', '.join(PERSPECTIVES)}, found {quote(whose)}")
    return settings


def _read_visits(read: FieldReader, settings: FieldReader, defaults: QueryDefaults) -> int:
    """Return the visits of each position, at most those that fit into a tree."""
    visits = read.whole("maxVisits", settings.whole("maxVisits", defaults.max_visits, least=1), least=1)
    if visits > defaults.most_visits:
        read.warn(
            "maxVisits",
            f"a position gets at most {defaults.most_visits} visits with {defaults.parallel} side by side",
        )
    return min(visits, defaults.most_visits)
