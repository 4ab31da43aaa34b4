"""Go in its simplest form: boards are dictionaries, chains are flooded every time, and superko compares with all
earlier boards.
"""

Point = tuple[int, int]  # row and column, from the upper left corner
Board = dict[Point, int]  # the stones: 0 for Black, 1 for White


class NaiveGo:
    def __init__(self, size: int, *, komi: float, suicide: bool, max_plies: int) -> None:
        self.size, self.komi, self.suicide, self.max_plies = size, komi, suicide, max_plies
        self.around = {(row, column): self._around(row, column) for row in range(size) for column in range(size)}
        self.board: Board = {}
        self.positions = [frozenset(self.board.items())]  # after each play, the current one last
        self.earlier = set(self.positions)
        self.actions: list[int] = []
        self._plays: dict[int, tuple[str, Board]] | None = None

    def _around(self, row: int, column: int) -> list[Point]:
        points = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
        return [(r, c) for r, c in points if 0 <= r < self.size and 0 <= c < self.size]

    def neighbors(self, point: Point) -> list[Point]:
        return self.around[point]

    def chain(self, board: Board, point: Point) -> set[Point]:
        """Return the stones connected to the stone, or the empty points connected to the empty point."""
        found, waiting = {point}, [point]
        while waiting:
            new = {other for other in self.neighbors(waiting.pop()) if board.get(other) == board.get(point)} - found
            found |= new
            waiting += new
        return found

    def border(self, points: set[Point]) -> set[Point]:
        return {other for point in points for other in self.neighbors(point)} - points

    def liberties(self, board: Board, stone: Point) -> int:
        return sum(point not in board for point in self.border(self.chain(board, stone)))

    def current_player(self) -> int:
        return len(self.actions) % 2

    def board_after(self, point: Point) -> Board:
        """Return the stones after a play on an empty point, legal or not."""
        mover = self.current_player()
        board = self.board | {point: mover}
        for other in [*(p for p in self.neighbors(point) if board.get(p) == 1 - mover), point]:
            if other in board and self.liberties(board, other) == 0:
                for stone in self.chain(board, other):
                    del board[stone]
        return board

    def verdict(self, point: Point, board: Board) -> str:
        """Return what the rules say about a play on an empty point that would leave this board: suicide, repeats or
        legal.
        """
        if point not in board and (not self.suicide or board == self.board):
            return "suicide"
        return "repeats" if frozenset(board.items()) in self.earlier else "legal"

    def plays(self) -> dict[int, tuple[str, Board]]:
        """Return the verdict and the board after a play on each empty point."""
        if self._plays is None:
            boards = {point: self.board_after(point) for point in self.around if point not in self.board}
            self._plays = {self.action(point): (self.verdict(point, board), board) for point, board in boards.items()}
        return self._plays

    def action(self, point: Point) -> int:
        return point[0] * self.size + point[1]

    def point(self, action: int) -> Point:
        return action // self.size, action % self.size

    def is_terminal(self) -> bool:
        return self.actions[-2:] == [self.size**2] * 2 or len(self.actions) >= self.max_plies

    def legal_actions(self) -> list[int]:
        if self.is_terminal():
            return []
        return [*(action for action, (verdict, _) in self.plays().items() if verdict == "legal"), self.size**2]

    def apply_action(self, action: int) -> None:
        if action < self.size**2:
            self.board = self.board_after(self.point(action))
            self.positions.append(frozenset(self.board.items()))
            self.earlier.add(self.positions[-1])
        self.actions.append(action)
        self._plays = None

    def score(self) -> float:
        points = {0: 0, 1: 0}
        for color in self.board.values():
            points[color] += 1
        unseen = set(self.around) - set(self.board)
        while unseen:
            region = self.chain(self.board, unseen.pop())
            unseen -= region
            colors = {self.board[stone] for stone in self.border(region)}
            if len(colors) == 1:
                points[colors.pop()] += len(region)
        return points[0] - points[1] - self.komi

    def returns(self) -> list[float]:
        if not self.is_terminal() or self.score() == 0:
            return [0, 0]
        return [1, -1] if self.score() > 0 else [-1, 1]
