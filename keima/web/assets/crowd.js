"use strict";
// The public page of a run. What it shows comes from strangers too: it is only ever set as text.
const STATE_MS = 10000, TABLE_MS = 30000, FEW_ROWS = 30;
const SECRET_LINK = /^https:\/\/[\w.:[\]-]+(?:\/[\w.~\/-]*)?#[\w-]{20,64}(?:\.[0-9a-f]{64})?$/;
const part = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
const tenths = new Intl.NumberFormat("en", {maximumFractionDigits: 1});
const strong = Charts.within(part("strong")), others = Charts.within(part("others"));
let state = null, curves = null, people = null, all = false, shownGame = 0;

function element(kind, text = "", className = "") {
  const made = document.createElement(kind);
  made.textContent = text;
  made.className = className;
  return made;
}

async function read(path) {
  const answer = await fetch("public/" + path);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

function say(text) {
  part("connection").textContent = text;
  part("connection").hidden = !text;
}

// The state of the run.

function showPairs(list, pairs) {
  list.replaceChildren(...pairs.map(([title, text, help]) => {
    const pair = element("div");
    pair.append(element("dt", title), element("dd", text));
    if (help) pair.title = help;
    return pair;
  }));
}

function showState() {
  const game = state.game && state.game !== state.name ? " · " + state.game : "";
  part("title").textContent = document.title = state.name + game;
  part("phase").textContent = state.running ? "It is running: " + (state.phase || "starting") + "." : "It is not running.";
  showPairs(part("strength"), state.strength);
  showPairs(part("metrics"), state.metrics);
  const now = state.present ? whole.format(state.present) + " of them " + (state.present === 1 ? "plays" : "play") + " now." : "none of them plays now.";
  part("counts").textContent = state.machines ? counted(state.people, "contributor", "contributors") + " with " + counted(state.machines, "machine", "machines") + "; " + now
    : "Nobody has joined yet.";
  showChoice();
}

function counted(number, one, many) {
  return whole.format(number) + " " + (number === 1 ? one : many);
}

// Curves.

function showCurves() {
  const axis = curves.axes.find(({metric}) => metric === part("axis").value) || curves.axes[0];
  const run = (charts) => [{name: curves.name, charts: charts, metrics: curves.metrics, rows: []}];
  part("curves").hidden = curves.iterations < 2;
  if (!axis || part("curves").hidden) return;
  strong.show(run(curves.strength), axis);
  if (part("more").open) others.show(run(curves.others), axis);
}

function takeCurves(found) {
  curves = found;
  const before = part("axis").value;
  part("axis").replaceChildren(...curves.axes.map(({metric, name}) => new Option(name, metric)));
  if (curves.axes.some(({metric}) => metric === before)) part("axis").value = before;
  if (!curves.strength.length) part("more").open = true;
  showCurves();
}

// The newest games.

function showChoice() {
  // A game that is looked at stays chosen, also when newer ones have taken its place in the list.
  const select = part("number"), games = state.games;
  part("choice").hidden = !games.length;
  if (!games.length) return;
  const kept = shownGame && !games.some(({number}) => number === shownGame) ? [...select.options].find((each) => Number(each.value) === shownGame) : null;
  select.replaceChildren(...games.map(({number, name}) => new Option(whole.format(number) + ", by " + name, number)), ...(kept ? [kept] : []));
  select.value = shownGame || games[0].number;
  showGame();
}

async function showGame() {
  const number = Number(part("number").value);
  if (number === shownGame) return;
  shownGame = number;
  try {
    const found = await read("games/" + number);
    if (number === shownGame) Games.show([found], part("games"));
    part("trouble").hidden = true;
  } catch (error) {
    part("trouble").textContent = String(error.message || error);
    part("trouble").hidden = false;
  }
}

// Who has given how much.

function fate(each) {
  // What became of somebody's games, in words.
  const made = element("td", "", "fate"), parts = [], believed = each.games - each.games_distrusted;
  if (each.games_in_window !== null && believed) {
    parts.push(whole.format(each.games_in_window) + " in the window");
    if (believed > each.games_in_window) parts.push(whole.format(believed - each.games_in_window) + " have left it");
  }
  if (each.games_refused) parts.push(whole.format(each.games_refused) + " refused");
  if (each.games_given_up) parts.push(whole.format(each.games_given_up) + " never came");
  made.append(parts.join(", "));
  if (each.games_distrusted || each.reasons.length) {
    const why = whole.format(each.games_distrusted) + " not used: " + each.reasons.join("; ");
    made.append(parts.length ? ". " : "", element("span", why, "bad"));
  }
  return made;
}

function presence(each) {
  if (!each.machines) return element("td");
  if (each.present) return element("td", each.machines > 1 ? each.present + " of " + each.machines : "plays", "here");
  const minutes = Math.max(1, (state.time - each.seen) / 60);
  const ago = minutes < 60 ? whole.format(minutes) + " min" : minutes < 2880 ? whole.format(minutes / 60) + " h" : whole.format(minutes / 1440) + " days";
  return element("td", each.seen === null ? "" : ago + " ago");
}

function line(each) {
  const row = element("tr"), name = element("td"), who = element("bdi", each.name, "who");
  who.title = each.name;
  name.append(who);
  row.append(name, presence(each), element("td", whole.format(each.games)), element("td", whole.format(each.games_this_week)),
    element("td", tenths.format(each.core_hours)), element("td", tenths.format(each.core_hours_this_week)),
    element("td", whole.format(each.games_outstanding)), fate(each));
  return row;
}

function showPeople() {
  if (!people || !state) return;
  const wanted = part("name").value.trim().toLocaleLowerCase();
  const found = people.people.filter(({name}) => name.toLocaleLowerCase().includes(wanted));
  const shown = all ? found : found.slice(0, FEW_ROWS);
  part("rows").replaceChildren(...shown.map(line));
  part("own").replaceChildren(...(people.own.games || people.own.core_hours ? [line(people.own)] : []));
  part("table").hidden = !shown.length && !part("own").children.length;
  part("none").hidden = !wanted || Boolean(found.length);
  part("finder").hidden = people.people.length < 2;
  part("all").hidden = found.length <= FEW_ROWS;
  part("all").textContent = all ? "Show fewer" : "Show all " + whole.format(found.length);
}

// What is new.

let tableRead = 0;

async function update() {
  if (document.hidden) return;
  try {
    state = await read("state");
    showState();
    if (!curves || curves.iterations !== state.iterations) takeCurves(await read("curves"));
    if (Date.now() - tableRead >= TABLE_MS) {
      people = await read("contributors");
      tableRead = Date.now();
    }
    showPeople();
    say("");
  } catch (error) {
    say(error instanceof TypeError ? "No connection; trying again." : String(error.message || error));
  }
}

if (SECRET_LINK.test(location.href)) {  // who has opened a link in a browser sees how to use it; it stays in the browser
  part("command").textContent = "keima join '" + location.href + "'";
  part("join").querySelector("li").hidden = true;
}
part("name").value = (new URLSearchParams(location.search).get("name") || "").slice(0, 60);
part("name").oninput = showPeople;
part("all").onclick = () => { all = !all; showPeople(); };
part("axis").onchange = showCurves;
part("more").ontoggle = () => { if (curves) showCurves(); };
part("number").onchange = showGame;
document.addEventListener("visibilitychange", update);
setInterval(update, STATE_MS);
update();
