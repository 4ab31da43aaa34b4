"use strict";
// Steps through recorded games, in the section of games.html. Pages of runs contain this script, and the dashboard serves it.
const Games = (() => {
const {element} = Boards;
let games = [];
const part = (name) => document.getElementById(name);
const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
let game = 0, position = 0, timer = 0;

function legend(view) {
  const visits = "Blue: how search shared out its visits, in percent, where it was a full one.";
  if (view.kind !== "go") return visits;
  const foreseen = view.moments.slice(0, -1).some((moment) => moment.ownership.length);
  const squares = foreseen ? "the owner of the point, as the run's newest network predicts it; at the end of a game that was played out, as the rules count it."
    : "the owner of the point at the end of a game that was played out. Predictions take a network that has learned them (network.predict_ownership).";
  return visits + " Squares: " + squares;
}

function board(view, moment, last) {
  const position = {kind: view.kind, players: view.players, cells: moment.cells, svg: moment.svg, text: moment.board};
  const moves = moment.policy.map(([name, share], i) => ({name: name, points: moment.policy_points[i], share: share}));
  return Boards.draw(position, {last: last, heat: part("visits").checked ? moves : [], ownership: part("owners").checked ? moment.ownership : []});
}

function said(moment, view) {
  const name = (player) => Boards.playerName(view.kind, player);
  const lead = moment.score_lead === null ? "" : moment.score_lead ? name(moment.score_lead > 0 ? 0 : 1) + " by " + Math.abs(moment.score_lead).toFixed(1) + ". " : "Even. ";
  const score = moment.score === null ? lead && "On points: " + lead : "Score " + whole.format(moment.score) + ". ";
  if (!moment.move) return score + "The end: " + view.result + ".";
  const who = moment.score === null ? name(moment.player) + " plays " : "Plays ";
  const how = (moment.drawn ? ", drawn at random" : "") + (moment.outcomes.length ? ", then " + moment.outcomes.join(" ") : "");
  const hope = moment.score === null ? "to win " + (50 + 50 * moment.value).toFixed(1) + " %" : whole.format(moment.value) + " points more";
  return score + who + moment.move + how + ". Expects " + hope + ".";
}

function showPosition() {
  const view = games[game], moment = view.moments[position];
  part("board").replaceChildren(board(view, moment, position ? view.moments[position - 1].points : []));
  part("layers").hidden = part("legend").hidden = view.kind === "twenty48" || !(moment.cells.length || moment.svg);
  part("owners").parentElement.hidden = view.kind !== "go";
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
