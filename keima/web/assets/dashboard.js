"use strict";
const LIMIT = 4;  // runs that are drawn at first
const CALIBRATION_MS = 60000;  // between two readings of it
const ENDED = "The dashboard has stopped: start keima dashboard again, and open its new address.";
const part = (id) => document.getElementById(id);
const clock = new Intl.DateTimeFormat([], {month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit"});
let overview = null;
const curves = new Map(), states = new Map(), wanted = new Set(), charts = Charts.within(part("sections"));

function element(kind, text = "", className = "") {
  const made = document.createElement(kind);
  made.textContent = text;
  made.className = className;
  return made;
}

function metricList(metrics) {
  const list = element("dl");
  for (const [title, text] of metrics) {
    const pair = element("div");
    pair.append(element("dt", title), element("dd", text));
    list.append(pair);
  }
  return list;
}

function table(titles, rows) {
  const scroll = element("div", "", "scroll"), made = element("table"), head = element("tr"), body = element("tbody");
  for (const {title, help} of titles) {
    const cell = element("th", title);
    cell.scope = "col";
    if (help) cell.title = help;
    head.append(cell);
  }
  for (const row of rows) {
    const line = element("tr");
    line.append(...row.map((text) => element("td", text)));
    body.append(line);
  }
  const top = element("thead");
  top.append(head);
  made.append(top, body);
  scroll.append(made);
  return reachable(scroll, titles[0].title);
}

function reachable(region, name) {
  // What scrolls can be reached and moved by the keyboard.
  region.tabIndex = 0;
  region.setAttribute("role", "region");
  region.setAttribute("aria-label", name);
  return region;
}

function list(metrics, name) {
  const made = metricList(metrics);
  made.className = "metrics";
  made.setAttribute("aria-label", name);
  return made;
}

async function read(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

// The state of a run now.

function accounts(rows) {
  const names = ["granted", "received", "quarantined", "missing", "discarded", "outstanding"];
  const balanced = (row) => row.granted === names.slice(1).reduce((sum, name) => sum + row[name], 0);
  const titles = [{title: "Worker"}, ...names.map((name) => ({title: name[0].toUpperCase() + name.slice(1)})), {title: ""}];
  const cells = (row) => [row.name, ...names.map((name) => row[name].toLocaleString("en")), balanced(row) ? "balances" : "does not balance"];
  const made = element("details");
  made.append(
    element("summary", rows.every(balanced) ? "Every game is accounted for" : "The account does not balance"),
    element("p", "Granted = received + quarantined + missing + discarded + outstanding. keima audit also checks the files.", "faint"),
    table(titles, rows.map(cells)));
  return made;
}

function card(worker) {
  const made = element("article", "", "card " + worker.state), head = element("header"), metrics = element("dl");
  head.append(element("strong", worker.name + (worker.machine ? " on " + worker.machine : "")), element("span", worker.state, "state"));
  for (const [title, text] of worker.metrics) metrics.append(element("dt", title), element("dd", text));
  made.append(head, metrics);
  if (worker.reason) made.append(element("p", (worker.since ? "for " + worker.since + ": " : "") + worker.reason, "reason"));
  if (worker.remedy) made.append(element("p", "Remedy: " + worker.remedy, "remedy"));
  if (worker.note) made.append(element("p", worker.note, "faint"));
  return made;
}

function limitsOf(state) {
  // What limits the run now, and how the main node spends its time.
  const made = element("section", "", "limits"), each = element("ul");
  for (const {who, what, remedy} of state.limits) {
    const line = element("li");
    line.append(element("strong", who), ": " + what + ". ", element("span", "Remedy: " + remedy + ".", "faint"));
    each.append(line);
  }
  made.append(element("h3", "What limits this run now"), each);
  if (state.shares) made.append(element("p", state.shares, "faint"));
  return made;
}

function stateOf(number) {
  const state = states.get(number), made = element("section");
  made.append(element("h2", state.game && state.game !== state.name ? state.name + " · " + state.game : state.name));
  for (const problem of state.problems) made.append(element("p", problem, "bad"));
  const phase = state.running ? state.phase || "running" : ["not running", state.phase !== "ended" && state.phase].filter(Boolean).join(" · ");
  made.append(element("p", [phase, state.running && state.games_so_far].filter(Boolean).join(" · "), state.running ? "good" : "faint"));
  made.append(list([...(state.metrics || []), ...(state.cluster || [])], "Metrics"));
  if (state.time) made.append(list(state.time, "Time and cost"));
  if ((state.limits || []).length) made.append(limitsOf(state));
  if (state.running && (state.workers || []).length) {
    const cards = element("div", "", "cards");
    cards.append(...state.workers.map(card));
    made.append(element("h3", "Workers"), cards);
  }
  if (state.accounts.length) made.append(accounts(state.accounts));
  if (state.events.length) {
    const events = element("details"), rows = reachable(element("ul", "", "events"), "Events");
    rows.append(...state.events.toReversed().map(([when, text]) => element("li", clock.format(1000 * when) + "  " + text)));
    events.append(element("summary", "Events: " + state.events.length), rows);
    made.append(events);
  }
  return made;
}

function keepOpen(holder, parts) {
  // What was unfolded, scrolled or focused stays so when it is drawn again.
  const [folds, regions, stops] = ["details", "[role=region]", "summary, [tabindex]"].map((kind) => () => [...holder.querySelectorAll(kind)]);
  const open = folds().map((each) => each.open), scrolled = regions().map((each) => [each.scrollLeft, each.scrollTop]);
  const focused = stops().indexOf(document.activeElement);
  holder.replaceChildren(...parts);
  folds().forEach((each, i) => { each.open = open[i] || false; });
  regions().forEach((each, i) => { [each.scrollLeft, each.scrollTop] = scrolled[i] || [0, 0]; });
  if (focused >= 0) stops()[focused]?.focus({preventScroll: true});
}

function showStates() {
  const shown = [...wanted].filter((number) => states.has(number));
  keepOpen(part("states"), shown.map(stateOf));
  showChoice();
  showCalibration();
}

function showTables() {
  const shown = [...wanted].filter((number) => curves.has(number) && curves.get(number).iterations);
  keepOpen(part("tables"), shown.map((number) => {
    const made = element("details"), {titles, rows} = curves.get(number).table, total = curves.get(number).iterations;
    const count = rows.length < total ? "the last " + rows.length + " of " + total.toLocaleString("en") : String(total);
    made.append(element("summary", overview.runs[number].name + ": " + count + " iterations"), table(titles, rows));
    return made;
  }));
}

// How well search's expectations are calibrated; computed from recorded games, so only for those who look.

const calibrations = Charts.within(part("calibrations"));
let calibrated = 0;  // when it was read

async function showCalibration() {
  const numbers = [...wanted].filter(gamesOf), fold = part("calibration");
  fold.hidden = !numbers.length;
  if (!fold.open || !numbers.length || Date.now() - calibrated < CALIBRATION_MS) return;
  calibrated = Date.now();
  try {
    const found = await Promise.all(numbers.map((number) => read("/api/runs/" + number + "/calibration")));
    calibrations.show(found.map((each, i) => ({...each, name: overview.runs[numbers[i]].name})), overview.axes[0]);
    const bare = found.every(({metrics}) => !Object.keys(metrics).length);
    part("uncalibrated").textContent = bare ? "Only games for two players without chance have it, after some hundred games." : "";
  } catch (error) {
    part("uncalibrated").textContent = String(error.message || error);
  }
}

// Games.

let shownGame = "";  // run and number of the game that is shown

function gamesOf(number) {
  return states.has(number) ? states.get(number).accounts.reduce((sum, row) => sum + row.received, 0) : 0;
}

function trouble(text) {
  part("trouble").textContent = text;
  part("trouble").hidden = !text;
}

async function showGame() {
  // The game that is chosen, or the newest one unless a game is being stepped through with it.
  const run = Number(part("played").value), total = gamesOf(run);
  const number = part("newest").checked ? total : Math.min(Math.max(1, Math.floor(part("number").valueAsNumber) || 1), total);
  if (!part("choice").open || !total || shownGame === run + "/" + number) return;
  shownGame = run + "/" + number;
  part("number").value = number;
  try {
    Games.show([await read("/api/runs/" + run + "/games/" + number)], part("games"));
    trouble("");
  } catch (error) {
    trouble(String(error.message || error));
  }
}

function showChoice() {
  const played = [...wanted].filter(gamesOf), select = part("played");
  part("choice").hidden = !played.length;
  if (!played.length) return;
  if (select.dataset.runs !== String(played)) {
    const before = Number(select.value);
    select.replaceChildren(...played.map((number) => {
      const option = element("option", overview.runs[number].name);
      option.value = number;
      return option;
    }));
    select.dataset.runs = String(played);
    if (played.includes(before)) select.value = before;
  }
  const total = gamesOf(Number(select.value));
  part("total").textContent = "of " + total.toLocaleString("en");
  part("number").max = total;
  showGame();
}

// Curves.

function showCurves() {
  const runs = [...wanted].filter((number) => curves.has(number)).map((number) => ({...curves.get(number), name: overview.runs[number].name}));
  charts.show(runs, overview.axes.find(({metric}) => metric === part("axis").value));
  showTables();
}

// What is looked at, and what is new.

async function update({run, curves: newCurves, state}) {
  if (!wanted.has(run)) {
    if (newCurves) curves.delete(run);
    if (state) states.delete(run);
    return;
  }
  if (newCurves) {
    curves.set(run, await read("/api/runs/" + run + "/curves"));
    showCurves();
  }
  if (state) {
    states.set(run, await read("/api/runs/" + run + "/state"));
    showStates();
  }
}

function say(text) {
  part("connection").textContent = text;
  part("connection").hidden = !text;
}

function listen() {
  const source = new EventSource("/api/changes");
  const missed = new Map();  // what has changed in each run while the page was hidden
  let waiting = Promise.resolve();
  const take = (change) => { waiting = waiting.then(() => update(change)).catch((error) => say(String(error.message || error))); };
  source.onopen = () => say("");
  source.onmessage = (message) => {
    const {run, curves, state} = JSON.parse(message.data), before = missed.get(run) || {};
    const change = {run: run, curves: curves || before.curves, state: state || before.state};
    if (document.hidden) missed.set(run, change); else take(change);
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    [...missed.values()].forEach(take);
    missed.clear();
  });
  source.addEventListener("end", () => {
    source.close();
    say(ENDED);
  });
  source.onerror = () => say(source.readyState === EventSource.CLOSED ? ENDED : "No connection; trying again.");
}

async function choose(number, on) {
  if (on) wanted.add(number); else wanted.delete(number);
  calibrated = 0;
  const missing = {run: number, curves: on && !curves.has(number), state: on && !states.has(number)};
  await update(missing);
  showStates();
  showCurves();
}

async function begin() {
  overview = await read("/api/runs");
  overview.runs.forEach(({name, folder}, number) => {
    const label = element("label"), box = element("input");
    box.type = "checkbox";
    box.checked = number < LIMIT;
    box.onchange = () => choose(number, box.checked).catch((error) => say(String(error.message || error)));
    label.append(box, " " + name);
    label.title = folder;
    part("runs").append(label);
    if (box.checked) wanted.add(number);
  });
  for (const {metric, name} of overview.axes) {
    const option = element("option", name);
    option.value = metric;
    part("axis").append(option);
  }
  part("axis").onchange = showCurves;
  part("played").onchange = showChoice;
  part("newest").onchange = showGame;
  part("choice").ontoggle = showGame;
  part("calibration").ontoggle = showCalibration;
  part("number").onchange = () => { part("newest").checked = false; showGame(); };
  part("games").addEventListener("pointerdown", () => { part("newest").checked = false; });  // do not replace a game that is looked at
  part("games").addEventListener("keydown", () => { part("newest").checked = false; });
  document.title = overview.runs.map(({name}) => name).join(", ") + " · Keima";
  listen();
}

begin().catch((error) => say(String(error.message || error)));
