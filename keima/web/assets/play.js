"use strict";
const {element} = Boards, part = (id) => document.getElementById(id);
const ARROWS = {ArrowUp: "up", ArrowRight: "right", ArrowDown: "down", ArrowLeft: "left"};
const percent = (share) => (100 * share).toFixed(1) + " %";
let offer = null;  // the models that can be chosen, and the limits
let view = null;  // the game as the server last told it
let selected;  // the point from which a move is to lead
let busy = false, watching = false;
const seats = new Map();  // the players of the games that have been seen, by model

async function told(answer) {
  if (answer.ok) return answer.json();
  throw new Error(answer.status === 401 ? "The server has restarted: open its new address." : (await answer.text()).trim());
}

function trouble(text) {
  part("trouble").textContent = text;
  part("trouble").hidden = !text;
}

// Send a command and show what became of the game; then let the network move if it is its turn.
async function send(command) {
  if (busy) return;
  busy = true;
  trouble("");
  showBusy(command.do);
  try {
    const answer = await fetch("/api/play", {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(command)});
    view = await told(answer);
    selected = undefined;
    part("choice").hidden = true;
  } catch (error) {
    trouble(String(error.message || error));
    watching = false;
  }
  busy = false;
  part("loading").hidden = true;
  if (view) show();
  if (view && part("trouble").hidden && networkToMove()) send({do: "answer", ply: view.moves.length});
}

function networkToMove() {
  if (view.over) return false;
  if (view.players.length === 1 || view.person === null) return watching;
  return view.to_move !== view.person;
}

function showBusy(what) {
  const loads = {new: "Loading the network. The first time on a machine, this compiles the game's search: a minute or more.",
    hint: "Thinking …", answer: "Thinking …"}[what] || "";
  part("loading").textContent = loads;
  part("loading").hidden = !loads;
  part("said").textContent = "…";
  for (const button of document.querySelectorAll("#right button, #setup button")) button.disabled = button.id !== "watch";
}

// The board, and moves on it.

function play(move) {
  send({do: "move", action: move.action, ply: view.moves.length});
}

function choose(moves) {
  part("choice").replaceChildren(...moves.map((move) => {
    const button = element("button", move.name);
    button.type = "button";
    button.onclick = () => play(move);
    return button;
  }));
  part("choice").hidden = false;
  part("choice").firstElementChild.focus();
}

function clicked(point) {
  if (busy || !mayMove()) return;
  const width = view.position.cells[0].length, begin = (move) => move.points[0];
  if (selected !== undefined) {
    const found = view.legal.filter((move) => begin(move) === selected && move.points.at(-1) === point && move.points.length > 1);
    if (found.length) return found.length === 1 ? play(found[0]) : choose(found);
    selected = undefined;
  }
  const here = view.legal.filter((move) => move.points.length && (view.drops ? begin(move) % width === point % width : begin(move) === point));
  const single = here.filter((move) => move.points.length === 1);
  part("choice").hidden = true;
  if (single.length) return single.length === 1 ? play(single[0]) : choose(single);
  if (here.length) selected = point;
  showBoard();
}

function named(name) {
  return view.legal.find((move) => move.name.toLowerCase() === name.trim().toLowerCase());
}

function mayMove() {
  return !view.over && (view.players.length === 1 || view.to_move === view.person);
}

function showBoard() {
  const focused = document.activeElement?.classList.contains("board"), thinks = part("thinks").checked, hinted = view.thought && view.thought.ply === view.moves.length;
  const heat = hinted ? view.thought.moves : thinks && view.opinion ? view.opinion.moves : [];
  const flip = view.position.kind === "chess" && view.person === 1;
  const owned = view.ownership && (view.over || part("owners").checked) ? view.ownership : [];
  const may = mayMove();
  part("board").replaceChildren(Boards.draw(view.position, {last: view.last, heat: heat, ownership: owned, flip: flip, selected: selected,
    choose: may ? clicked : undefined, chooseMove: may ? (name) => named(name) && play(named(name)) : undefined}));
  if (focused) part("board").querySelector(".board")?.focus();
}

// What is said about the game.

function lead() {
  if (view.score_lead === undefined) return "";
  const winner = view.players[view.score_lead > 0 ? 0 : 1], points = Math.abs(view.score_lead);
  return " " + (points ? winner + (view.over ? " leads by " : " by about ") + points.toFixed(1) + " points." : "Even on points.");
}

function status() {
  const score = view.score === null ? "" : "Score " + view.score.toLocaleString("en") + ". ";
  if (view.over) return score + view.result + lead();
  const mover = view.players[view.to_move];
  if (view.players.length === 1) return score + "Your move.";
  if (view.person === null) return mover + " to move.";
  return view.to_move === view.person ? "Your move: you play " + mover + "." : mover + ", the network, is thinking.";
}

function showExpectations() {
  const opinion = view.opinion, two = view.players.length === 2;
  part("bar").hidden = !two || !opinion;
  part("expects").textContent = "";
  if (!opinion) return;
  if (two) {
    const chance = (1 + opinion.expects[0]) / 2, text = view.players[0] + " wins with " + percent(chance) + ", says the network without search";
    part("first").style.width = 100 * chance + "%";
    part("bar-text").replaceChildren(element("span", view.players[0] + " " + percent(chance)));
    part("bar").setAttribute("aria-label", text);
    part("expects").textContent = text + "." + (view.over ? "" : lead());
  } else if (view.players.length === 1) part("expects").textContent = "The network expects " + Math.round(opinion.expects[0]).toLocaleString("en") + " points more.";
  else part("expects").textContent = "Expected returns: " + opinion.expects.map((value, i) => view.players[i] + " " + value.toFixed(2)).join(", ") + ".";
}

function showThought() {
  const thought = view.thought;
  if (!thought) return part("thought").replaceChildren();
  const made = element("table"), head = element("tr"), body = element("tbody");
  for (const title of ["Move", "Visits", "", "Wins", "Expected line"]) head.append(element("th", title));
  for (const move of thought.moves) {
    const row = element("tr"), wins = move.value === undefined ? "" : percent((1 + move.value) / 2);
    row.append(element("td", move.name), element("td", move.visits.toLocaleString("en")), element("td", percent(move.share)), element("td", wins), element("td", (move.line || []).join(" ")));
    body.append(row);
  }
  const top = element("thead");
  top.append(head);
  made.append(element("caption", (thought.ply === view.moves.length ? "Here" : "Before its last move") + " it would play " + thought.moves[0].name + ": "
    + thought.simulations.toLocaleString("en") + " simulations in " + thought.seconds + " s"), top, body);
  part("thought").replaceChildren(made);
}

function showButtons() {
  const drawn = new Set([...part("board").querySelectorAll("[data-move]")].map((place) => place.dataset.move));
  const onBoard = (move) => view.position.svg ? drawn.has(move.name) : view.position.cells.length && move.points.length;
  const pointless = mayMove() ? view.legal.filter((move) => !onBoard(move)) : [];
  part("buttons").replaceChildren(...pointless.map((move) => {
    const button = element("button", move.name);
    button.type = "button";
    button.dataset.name = move.name;
    button.onclick = () => play(move);
    return button;
  }));
  const alone = view.players.length === 1 || view.person === null;
  for (const id of ["hint", "undo", "resign", "answer", "watch"]) part(id).disabled = false;
  for (const button of document.querySelectorAll("form button")) button.disabled = false;
  part("hint").disabled = !mayMove();
  part("undo").disabled = !view.moves.length;
  part("resign").hidden = alone;
  part("resign").disabled = view.over;
  part("answer").hidden = part("watch").hidden = !alone;
  part("answer").disabled = part("watch").disabled = view.over;
  part("watch").textContent = watching && !view.over ? "Stop" : "Watch";
  part("save").textContent = "Save as " + view.saves_as;
}

function show() {
  part("table").hidden = false;
  if (!seats.has(view.chosen)) {
    seats.set(view.chosen, view.players);
    showSides();
  }
  document.title = view.title + " · Keima";
  showBoard();
  showButtons();
  showExpectations();
  showThought();
  part("said").textContent = status();
  part("owners-label").hidden = !view.ownership;
  part("moves").textContent = view.moves.map((name, i) => (view.players.length === 2 ? (i % 2 ? "" : i / 2 + 1 + ". ") : i + 1 + ". ") + name).join(" ");
  part("legal").replaceChildren(...(mayMove() ? view.legal : []).slice(0, 400).map((move) => {
    const option = element("option");
    option.value = move.name;
    return option;
  }));
}

// The choice of a game.

function showSides() {
  const chosen = offer.models.find((model) => model.name === part("model").value), before = part("person").value;
  const usual = chosen && chosen.game === "twenty48" ? [0] : [0, 1];
  const names = seats.get(part("model").value) || usual.map((player) => Boards.playerName(chosen && chosen.game, player));
  const sides = [...names.map((name, i) => [String(i), name]), ["watch", "watch"]];
  part("person").replaceChildren(...sides.map(([value, name]) => {
    const option = element("option", name);
    option.value = value;
    return option;
  }));
  if (sides.some(([value]) => value === before)) part("person").value = before;
}

function showModels() {
  const groups = new Map();
  for (const model of offer.models) {
    if (!groups.has(model.group)) groups.set(model.group, []);
    const option = element("option", model.title + " (" + model.game + ")");
    option.value = model.name;
    groups.get(model.group).push(option);
  }
  part("model").replaceChildren(...[...groups].map(([name, options]) => {
    const group = element("optgroup");
    group.label = name || "Models in files";
    group.append(...options);
    return group;
  }));
  if (offer.chosen) part("model").value = offer.chosen;
  if (!offer.models.length) trouble("There is no model yet: a run publishes its first one after its first iteration.");
}

function begin() {
  const unit = part("unit").value, limit = part("limit").valueAsNumber, person = part("person").value;
  const most = offer.limits[unit];
  if (!(limit > 0) || limit > most) return trouble("Up to " + most.toLocaleString("en") + " " + unit + " a move.");
  watching = person === "watch";
  view = null;
  part("table").hidden = true;
  send({do: "new", model: part("model").value, person: person === "watch" ? null : Number(person), [unit]: unit === "seconds" ? limit : Math.floor(limit)});
}

async function start() {
  fetch("/api/runs").then((answer) => answer.json()).then(({runs}) => { part("runs-link").hidden = !runs.length; });
  offer = await told(await fetch("/api/play/models"));
  showModels();
  showSides();
  part("model").onchange = showSides;
  const usual = {simulations: offer.usual.simulations || 400, seconds: offer.usual.seconds};
  const propose = () => {
    const unit = part("unit").value;
    part("limit").step = part("limit").min = unit === "seconds" ? 0.1 : 1;
    part("limit").value = usual[unit];
  };
  part("unit").value = offer.usual.simulations ? "simulations" : "seconds";
  propose();
  part("unit").onchange = propose;
  part("setup").onsubmit = (event) => { event.preventDefault(); begin(); };
  part("typed").onsubmit = (event) => {
    event.preventDefault();
    const move = view && mayMove() && named(part("move").value);
    if (!move) return trouble(part("move").value + " is not legal here.");
    part("move").value = "";
    play(move);
  };
  for (const id of ["hint", "answer"]) part(id).onclick = () => send({do: id, ply: view.moves.length});
  for (const id of ["undo", "resign"]) part(id).onclick = () => { watching = false; send({do: id}); };
  part("watch").onclick = () => { watching = !watching; if (watching) send({do: "answer", ply: view.moves.length}); else part("watch").textContent = "Watch"; };
  for (const id of ["thinks", "owners"]) part(id).onchange = showBoard;
  document.addEventListener("keydown", (event) => {
    const move = view && view.position.kind === "twenty48" && !busy && !/input|select/i.test(event.target.localName) && ARROWS[event.key] && named(ARROWS[event.key]);
    if (!move) return;
    event.preventDefault();
    play(move);
  });
  if (offer.playing) send({do: "look"});
}

start().catch((error) => trouble(String(error.message || error)));
