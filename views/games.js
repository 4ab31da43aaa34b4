"use strict";
// Steps through recorded games, in the section of games.html. Pages of runs contain this script, and the dashboard serves it.
const Games = (() => {
let games = [];
const part = (name) => document.getElementById(name);
const colours = ["#cdc1b4", "#eee4da", "#ede0c8", "#f2b179", "#f59563", "#f67c5f", "#f65e3b", "#edcf72", "#edcc61", "#edc850", "#edc53f", "#edc22e"];
const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
let game = 0, position = 0, timer = 0;

function element(kind, text) {
  const made = document.createElement(kind);
  made.textContent = text;
  return made;
}

function shape(kind, attributes, text) {
  const made = document.createElementNS(part("space").namespaceURI, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const letters = "ABCDEFGHJKLMNOPQRST", unit = 20, edge = 30;  // columns have no I; a point's width, and the first point's distance from the edge
const names = {go: ["Black", "White"], chess: ["White", "Black"]};

function goban(moment, last) {
  const size = moment.cells.length, at = (line) => edge + unit * line, width = at(size - 1) + unit;
  const drawn = shape("svg", {viewBox: [0, 0, width, width].join(" "), class: "goban", role: "img", "aria-label": "Board"});
  const add = (kind, attributes, text) => drawn.append(shape(kind, attributes, text));
  const place = (name) => [letters.indexOf(name[0]), size - Number(name.slice(1))];  // column and row of a point that is called so
  add("rect", {width: width, height: width, rx: 4, class: "wood"});
  for (let line = 0; line < size; line++) {
    add("path", {d: "M" + at(0) + " " + at(line) + "H" + at(size - 1) + "M" + at(line) + " " + at(0) + "V" + at(size - 1), class: "lines"});
    add("text", {x: at(line), y: 13}, letters[line]);
    add("text", {x: 10, y: at(line) + 3}, size - line);
  }
  moment.cells.forEach((row, y) => row.forEach((stone, x) => {
    if (stone) add("circle", {cx: at(x), cy: at(y), r: 9.3, class: stone === 1 ? "black" : "white"});
  }));
  if (last && last !== "pass") {
    const [x, y] = place(last);
    add("circle", {cx: at(x), cy: at(y), r: 5.5, class: "last"});
  }
  if (part("owners").checked) moment.ownership.forEach((share, point) => {
    const half = 4.5 * Math.sqrt(Math.abs(share) / 100), x = at(point % size), y = at(Math.floor(point / size));
    if (half < 0.5) return;
    const square = shape("rect", {x: x - half, y: y - half, width: 2 * half, height: 2 * half, class: share > 0 ? "black" : "white"});
    square.append(shape("title", {}, names.go[share > 0 ? 0 : 1] + " " + Math.abs(share) + " %"));
    drawn.append(square);
  });
  if (part("visits").checked) moment.policy.filter(([name]) => name !== "pass").forEach(([name, share]) => {
    const [x, y] = place(name);
    add("circle", {cx: at(x), cy: at(y), r: 8.5, class: "visits", "fill-opacity": (0.2 + 0.8 * share / moment.policy[0][1]).toFixed(2)});
    if (share >= 0.01) add("text", {x: at(x), y: at(y) + 3, class: "share"}, Math.round(100 * share));
  });
  return drawn;
}

function legend(view) {
  const foreseen = view.moments.slice(0, -1).some((moment) => moment.ownership.length);
  const squares = foreseen ? "the owner of the point, as the run's newest network predicts it; at the end of a game that was played out, as the rules count it."
    : "the owner of the point at the end of a game that was played out. Predictions take a network that has learned them (network.predict_ownership).";
  return "Blue: how search shared out its visits, in percent, where it was a full one. Squares: " + squares;
}

function board(view, moment, last) {
  if (view.game === "go") return goban(moment, last);
  if (!moment.cells.length) return element("pre", moment.board);
  const grid = element("div", "");
  grid.className = "tiles";
  grid.style.gridTemplateColumns = "repeat(" + moment.cells[0].length + ", 64px)";
  for (const tile of moment.cells.flat()) {
    const cell = element("span", tile || "");
    const exponent = tile ? Math.log2(tile) : 0;
    cell.style.background = colours[exponent] || "#3c3a32";
    if (exponent > 2) cell.style.color = "#f9f6f2";
    cell.style.fontSize = tile > 9999 ? "17px" : tile > 999 ? "21px" : "26px";
    grid.append(cell);
  }
  return grid;
}

function said(moment, view) {
  const players = names[view.game] || ["Player 1", "Player 2"];
  const lead = moment.score_lead === null ? "" : moment.score_lead ? players[moment.score_lead > 0 ? 0 : 1] + " by " + Math.abs(moment.score_lead).toFixed(1) + ". " : "Even. ";
  const score = moment.score === null ? lead && "On points: " + lead : "Score " + whole.format(moment.score) + ". ";
  if (!moment.move) return score + "The end: " + view.result + ".";
  const who = moment.score === null ? players[moment.player] + " plays " : "Plays ";
  const how = (moment.drawn ? ", drawn at random" : "") + (moment.outcomes.length ? ", then " + moment.outcomes.join(" ") : "");
  const hope = moment.score === null ? "to win " + (50 + 50 * moment.value).toFixed(1) + " %" : whole.format(moment.value) + " points more";
  return score + who + moment.move + how + ". Expects " + hope + ".";
}

function showPosition() {
  const view = games[game], moment = view.moments[position];
  part("board").replaceChildren(board(view, moment, position ? view.moments[position - 1].move : ""));
  part("layers").hidden = part("legend").hidden = view.game !== "go";
  part("legend").textContent = legend(view);
  part("said").textContent = "Position " + (position + 1) + " of " + view.moments.length + ". " + said(moment, view);
  part("policy").replaceChildren(...moment.policy.slice(0, 8).map(([name, share]) => {
    const row = element("tr", ""), bar = element("div", ""), cell = element("td", "");
    bar.style.width = Math.round(200 * share) + "px";
    cell.append(bar);
    row.append(element("td", name), element("td", (100 * share).toFixed(1) + " %"), cell);
    return row;
  }));
  part("slider").max = view.moments.length - 1;
  part("slider").value = position;
}

function go(to) {
  position = Math.min(Math.max(to, 0), games[game].moments.length - 1);
  if (timer && position === games[game].moments.length - 1) play();
  showPosition();
}

function play() {
  if (timer) { clearInterval(timer); timer = 0; } else { timer = setInterval(() => go(position + 1), 250); }
  part("run").textContent = timer ? "stop" : "play";
}

const keys = {ArrowLeft: () => go(position - 1), ArrowRight: () => go(position + 1), PageUp: () => go(position - 10),
  PageDown: () => go(position + 10), Home: () => go(0), End: () => go(Infinity), " ": play};

function begin(heard) {
  part("game").addEventListener("change", () => { game = part("game").selectedIndex; go(0); part("game").blur(); });
  part("first").addEventListener("click", () => go(0));
  part("back").addEventListener("click", () => go(position - 1));
  part("next").addEventListener("click", () => go(position + 1));
  part("last").addEventListener("click", () => go(Infinity));
  part("run").addEventListener("click", play);
  part("slider").addEventListener("input", () => go(Number(part("slider").value)));
  for (const layer of ["visits", "owners"]) part(layer).addEventListener("change", showPosition);
  heard.addEventListener("keydown", (event) => {
    const own = {select: true, range: true, number: true, checkbox: event.key === " ", submit: event.key === " "};  // what the focused part does itself
    if (!keys[event.key] || own[(event.target.type || "").split("-")[0]]) return;
    event.preventDefault();
    keys[event.key]();
  });
}

// Show the first of these games; ``heard`` is the part of the page whose keys step through it.
function show(list, heard) {
  if (!list.length) return;
  if (!games.length) begin(heard);
  games = list;
  game = 0;
  if (timer) play();
  part("games").hidden = false;
  part("game").replaceChildren(...games.map((view) => element("option", "game " + view.number + ": " + view.result)));
  go(0);
}

return {show: show};
})();
