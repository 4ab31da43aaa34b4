"use strict";
// Draws positions, as report/games/drawn_board.py describes them: where recorded games are shown, and where people play.
const Boards = (() => {
const SPACE = new DOMParser().parseFromString("<svg></svg>", "text/html").querySelector("svg").namespaceURI;
const UNIT = 20, EDGE = 30;  // the width of a cell, and from the edge of the drawing to the middle of the first cell
const LETTERS = {go: "ABCDEFGHJKLMNOPQRST", chess: "abcdefgh", grid: "abcdefghijklmnopqrstuvwxyz"};  // columns of Go have no I
const MEN = " \u265f\u265e\u265d\u265c\u265b\u265a";  // pawn, knight, bishop, rook, queen, king
const TEXT = "\ufe0e";  // shows the sign before it as text rather than as a picture
const TILES = ["#cdc1b4", "#eee4da", "#ede0c8", "#f2b179", "#f59563", "#f67c5f", "#f65e3b", "#edcf72", "#edcc61", "#edc850", "#edc53f", "#edc22e"];
const LEAST_SHARE = 0.01, LEAST_ARROW = 0.04;  // of the visits, for a number and for an arrow
const PLAYERS = {go: ["Black", "White"], chess: ["White", "Black"]};
const STEPS = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};

function element(kind, text = "", className = "") {
  const made = document.createElement(kind);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function shape(kind, attributes, text) {
  const made = document.createElementNS(SPACE, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function playerName(kind, player) {
  return (PLAYERS[kind] || [])[player] || "Player " + (player + 1);
}

function seat(value, players) {
  // The player, from 1, whose stone a cell holds; 0: it holds none, or something else.
  if (players > 2) return value > 0 && value <= players ? value : 0;
  return players === 2 ? {1: 1, "-1": 2}[value] || 0 : 0;
}

// A board of H rows and W columns: the drawing, and the middle of each point.
function ground(kind, height, width, flip) {
  const wide = EDGE + UNIT * width, high = EDGE + UNIT * height, drawn = shape("svg", {viewBox: [0, 0, wide, high].join(" "), class: "board " + kind});
  const add = (what, attributes, text) => drawn.append(shape(what, attributes, text));
  const along = (column) => EDGE + UNIT * (flip ? width - 1 - column : column), down = (row) => EDGE + UNIT * (flip ? height - 1 - row : row);
  const at = (point) => [along(point % width), down(Math.floor(point / width))], half = UNIT / 2;
  add("rect", {width: wide, height: high, rx: 4, class: "wood"});
  for (let point = 0; point < height * width; point++) {
    const [x, y] = at(point), dark = (point % width + Math.floor(point / width)) % 2;
    if (kind === "connect_four") add("circle", {cx: x, cy: y, r: 8.5, class: "cell"});
    else if (kind !== "go") add("rect", {x: x - half, y: y - half, width: UNIT, height: UNIT, class: dark ? "cell dark" : "cell"});
  }
  for (let column = 0; column < width; column++) {
    if (kind === "go") add("path", {d: "M" + along(column) + " " + down(0) + "V" + down(height - 1), class: "lines"});
    add("text", {x: along(column), y: 13}, kind === "connect_four" ? column + 1 : LETTERS[kind][column] || column + 1);
  }
  for (let row = 0; row < height; row++) {
    if (kind === "go") add("path", {d: "M" + along(0) + " " + down(row) + "H" + along(width - 1), class: "lines"});
    if (kind !== "connect_four") add("text", {x: 10, y: down(row) + 3}, kind === "grid" ? row + 1 : height - row);
  }
  return {drawn, at, add};
}

function man({add}, kind, value, [x, y], players) {
  if (!value) return;
  const owner = seat(value, players);
  if (kind === "chess") add("text", {x: x, y: y + 6, class: "man " + (value > 0 ? "p1" : "p2")}, MEN[Math.abs(value)] + TEXT);
  else if (owner) add("circle", {cx: x, cy: y, r: kind === "go" ? 9.3 : 8.2, class: "stone p" + owner});
  else {
    if (players === 2) add("circle", {cx: x, cy: y, r: 8.2, class: "stone p" + (value > 0 ? 1 : 2)});
    add("text", {x: x, y: y + 3, class: players === 2 ? "number on" : "number"}, players === 2 ? Math.abs(value) : value);
  }
}

function last({add, at}, points) {
  if (points.length === 1) {
    const [x, y] = at(points[0]);
    add("circle", {cx: x, cy: y, r: 5.5, class: "last"});
  } else for (const [x, y] of points.map(at)) add("rect", {x: x - UNIT / 2, y: y - UNIT / 2, width: UNIT, height: UNIT, class: "last"});
}

function owners({drawn, at}, kind, shares) {
  shares.forEach((share, point) => {
    const half = 4.5 * Math.sqrt(Math.abs(share) / 100), [x, y] = at(point);
    if (half < 0.5) return;
    const square = shape("rect", {x: x - half, y: y - half, width: 2 * half, height: 2 * half, class: "owner p" + (share > 0 ? 1 : 2)});
    square.append(shape("title", {}, playerName(kind, share > 0 ? 0 : 1) + " " + Math.abs(share) + " %"));
    drawn.append(square);
  });
}

// Moves by their shares, each {name, points, share}, the largest first: a spot, or an arrow from point to point.
function heat({add, at}, moves) {
  const placed = moves.filter(({points}) => points.length);
  const strength = (share) => (0.2 + 0.8 * share / placed[0].share).toFixed(2);
  for (const {points, share} of placed.toReversed()) {
    const [x, y] = at(points.at(-1));
    if (points.length > 1) {
      const [x0, y0] = at(points[0]);
      if (share >= LEAST_ARROW) add("path", {d: "M" + x0 + " " + y0 + "L" + x + " " + y, class: "visits arrow", "stroke-opacity": strength(share)});
    } else add("circle", {cx: x, cy: y, r: 8.5, class: "visits", "fill-opacity": strength(share)});
  }
  const named = new Set();
  for (const {points, share} of placed) {
    const point = points.at(-1), [x, y] = at(point);
    if (named.has(point) || share < (points.length > 1 ? LEAST_ARROW : LEAST_SHARE)) continue;
    named.add(point);
    add("text", {x: x, y: y + 3, class: points.length > 1 ? "share arrow" : "share"}, Math.round(100 * share));
  }
}

// Let people choose points by clicks, or by arrow keys and Enter.
function choosable({drawn, at, add}, height, width, flip, choose) {
  let cursor = -1;
  const mark = shape("rect", {width: UNIT, height: UNIT, class: "cursor", visibility: "hidden"});
  const move = (point) => {
    cursor = point;
    const [x, y] = at(point);
    mark.setAttribute("x", x - UNIT / 2);
    mark.setAttribute("y", y - UNIT / 2);
    mark.setAttribute("visibility", "visible");
  };
  drawn.append(mark);
  for (let point = 0; point < height * width; point++) {
    const [x, y] = at(point);
    add("rect", {x: x - UNIT / 2, y: y - UNIT / 2, width: UNIT, height: UNIT, class: "spot", "data-point": point});
  }
  drawn.setAttribute("tabindex", "0");
  drawn.addEventListener("click", (event) => { if (event.target.dataset.point) choose(Number(event.target.dataset.point)); });
  drawn.addEventListener("keydown", (event) => {
    const step = STEPS[event.key], sign = flip ? -1 : 1;
    if (step && cursor < 0) move(Math.floor(height / 2) * width + Math.floor(width / 2));
    else if (step) {
      const row = Math.floor(cursor / width) + sign * step[0], column = cursor % width + sign * step[1];
      if (row >= 0 && row < height && column >= 0 && column < width) move(row * width + column);
    } else if ((event.key === "Enter" || event.key === " ") && cursor >= 0) choose(cursor);
    else return;
    event.preventDefault();
  });
}

function cellBoard({kind, cells, players}, options) {
  const height = cells.length, width = cells[0].length, board = ground(kind, height, width, options.flip);
  cells.forEach((row, y) => row.forEach((value, x) => man(board, kind, value, board.at(y * width + x), players)));
  last(board, options.last || []);
  owners(board, kind, options.ownership || []);
  heat(board, options.heat || []);
  for (const point of options.selected === undefined ? [] : [options.selected]) last(board, [point]);
  if (options.choose) choosable(board, height, width, options.flip, options.choose);
  return board.drawn;
}

function tiles({cells}) {
  const grid = element("div", "", "tiles");
  grid.style.gridTemplateColumns = "repeat(" + cells[0].length + ", 64px)";
  for (const tile of cells.flat()) {
    const cell = element("span", tile || ""), exponent = tile ? Math.log2(tile) : 0;
    cell.style.background = TILES[exponent] || "#3c3a32";
    if (exponent > 2) cell.style.color = "#f9f6f2";
    cell.style.fontSize = tile > 9999 ? "17px" : tile > 999 ? "21px" : "26px";
    grid.append(cell);
  }
  return grid;
}

// A game's own drawing; its elements with data-move="NAME" make that move.
function ownDrawing(text, options) {
  const drawn = new DOMParser().parseFromString(text, "text/html").querySelector("svg");
  if (!drawn) return null;
  for (const part of [drawn, ...drawn.querySelectorAll("*")]) {
    if (["script", "style", "a", "use", "image", "foreignObject"].includes(part.localName)) part.remove();
    for (const name of part.getAttributeNames()) if (/^on|href$|^style$/i.test(name)) part.removeAttribute(name);
  }
  drawn.classList.add("board", "own");
  const places = new Map([...drawn.querySelectorAll("[data-move]")].map((part) => [part.dataset.move, part]));
  for (const {name, share} of options.heat || []) {
    if (places.has(name)) places.get(name).append(shape("title", {}, name + ": " + (100 * share).toFixed(1) + " %"));
  }
  const best = (options.heat || [])[0];
  if (best && places.has(best.name)) places.get(best.name).classList.add("best");
  if (options.chooseMove) for (const [name, part] of places) {
    part.classList.add("spot");
    part.setAttribute("tabindex", "0");
    part.setAttribute("role", "button");
    part.setAttribute("aria-label", name);
    part.addEventListener("click", () => options.chooseMove(name));
    part.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); options.chooseMove(name); } });
  }
  return document.adoptNode(drawn);
}

// Draw a position {kind, players, cells, svg, text}.
//   last: the points of the last move; heat: moves by their shares; ownership: percent by point; flip: seen from the other side;
//   selected: a point that was chosen; choose: called with a point, chooseMove with the name of a move.
function draw(position, options = {}) {
  const own = position.svg && ownDrawing(position.svg, options);
  const drawn = own || (!position.cells.length ? element("pre", position.text) : position.kind === "twenty48" ? tiles(position) : cellBoard(position, options));
  if (drawn.localName === "svg") {
    drawn.setAttribute("role", options.choose || options.chooseMove ? "application" : "img");
    drawn.setAttribute("aria-label", options.choose ? "Board: arrow keys choose a point, Enter plays" : "Board");
  }
  return drawn;
}

return {draw: draw, element: element, playerName: playerName};
})();
