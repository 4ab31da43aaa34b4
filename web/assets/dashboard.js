"use strict";
const TIME = "run/seconds", COLOURS = 8, HEIGHT = 220, LIMIT = 4;  // runs that are drawn at first
const part = (id) => document.getElementById(id);
const compact = new Intl.NumberFormat("en", {notation: "compact", maximumSignificantDigits: 3});
const clock = new Intl.DateTimeFormat([], {month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit"});
let overview = null;
const curves = new Map(), states = new Map(), drawn = new Map(), wanted = new Set();

function element(kind, text = "", className = "") {
  const made = document.createElement(kind);
  made.textContent = text;
  made.className = className;
  return made;
}

function figureList(figures) {
  const list = element("dl");
  for (const [title, text] of figures) {
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
  return scroll;
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
    element("p", "Granted = received + quarantined + missing + discarded + outstanding. scripts/audit.py also checks the files.", "faint"),
    table(titles, rows.map(cells)));
  return made;
}

function card(worker) {
  const made = element("article", "", "card " + worker.mark), head = element("header"), list = element("dl");
  head.append(element("strong", worker.name), element("span", worker.mark));
  for (const [title, text] of worker.figures) list.append(element("dt", title), element("dd", text));
  made.append(head, list);
  if (worker.error) made.append(element("p", worker.error));
  return made;
}

function stateOf(number) {
  const state = states.get(number), made = element("section");
  made.append(element("h2", state.game && state.game !== state.name ? state.name + " · " + state.game : state.name));
  for (const problem of state.problems) made.append(element("p", problem, "bad"));
  const phase = state.running ? state.phase || "running" : "not running";
  made.append(element("p", [phase, state.running && state.games_so_far].filter(Boolean).join(" · "), state.running ? "good" : "faint"));
  const list = figureList([...(state.figures || []), ...(state.cluster || []).map((text) => text.split(": "))]);
  list.className = "figures";
  made.append(list);
  if (state.running && (state.workers || []).length) {
    const cards = element("div", "", "cards");
    cards.append(...state.workers.map(card));
    made.append(element("h3", "Workers"), cards);
  }
  if (state.accounts.length) made.append(accounts(state.accounts));
  if (state.events.length) {
    const events = element("details"), rows = element("ul", "", "events");
    rows.append(...state.events.toReversed().map(([when, text]) => element("li", clock.format(1000 * when) + "  " + text)));
    events.append(element("summary", "Events: " + state.events.length), rows);
    made.append(events);
  }
  return made;
}

function keepOpen(holder, parts) {
  // What was unfolded stays so when it is drawn again.
  const open = [...holder.querySelectorAll("details")].map((each) => each.open);
  holder.replaceChildren(...parts);
  [...holder.querySelectorAll("details")].forEach((each, i) => { each.open = open[i] || false; });
}

function showStates() {
  const shown = [...wanted].filter((number) => states.has(number));
  keepOpen(part("states"), shown.map(stateOf));
  showChoice();
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

function axisOf(numbers) {
  const figure = part("axis").value, name = overview.axes.find((each) => each.figure === figure).name;
  if (figure !== TIME) return {figure: figure, name: name, size: 1};
  const longest = Math.max(...numbers.map((number) => curves.get(number).figures[TIME]?.at(-1) || 0));
  return longest >= 7200 ? {figure: figure, name: "hours", size: 3600} : {figure: figure, name: "minutes", size: 60};
}

function chartsOf(numbers) {
  const tiles = [...new Set(numbers.flatMap((number) => curves.get(number).tiles))].slice(-5);
  const reached = tiles.map((figure) => ({name: figure.split("_").at(-1), figure: figure, margin: "", help: ""}));
  const more = tiles.length ? [{section: "Learning", title: "Games that reach a tile", unit: "share", curves: reached}] : [];
  return [...overview.charts.filter((chart) => chart.section === "Learning"), ...more, ...overview.charts.filter((chart) => chart.section !== "Learning")];
}

function plan(chart, numbers, axis) {
  // The series of a chart, each with its points: one for each run and curve that has two points.
  const found = [];
  for (const number of numbers) {
    const {figures} = curves.get(number), places = figures[axis.figure] || [];
    for (const curve of chart.curves) {
      const values = figures[curve.figure];
      if (!values) continue;
      const points = [];
      places.forEach((place, i) => {
        if (place === null || values[i] === null || (points.length && place / axis.size <= points.at(-1)[0])) return;
        points.push([place / axis.size, values[i], (curve.margin && figures[curve.margin]?.[i]) || 0]);
      });
      if (points.length < 2) continue;
      const name = [numbers.length > 1 ? overview.runs[number].name : "", curve.name].filter(Boolean).join(" ");
      found.push({name: name || chart.title, points: points, band: Boolean(curve.margin)});
    }
  }
  return found;
}

function colour(i) {
  return getComputedStyle(document.documentElement).getPropertyValue("--c" + (i % COLOURS)).trim();
}

function options(chart, series, axis, width) {
  const show = chart.unit === "share" ? (value) => (100 * value).toFixed(1) + " %" : (value) => compact.format(value);
  const style = getComputedStyle(document.documentElement), ink = style.getPropertyValue("--faint").trim(), line = style.getPropertyValue("--line").trim();
  const axes = {stroke: ink, grid: {stroke: line, width: 1}, ticks: {stroke: line, width: 1}, font: "11px system-ui"};
  const value = (plot, number) => number === null || number === undefined ? "" : show(number);
  const made = [{label: axis.name, value: (plot, number) => number === null || number === undefined ? "" : compact.format(number)}], bands = [];
  series.forEach((each, i) => {
    made.push({label: each.name, stroke: colour(i), width: 1.8, spanGaps: true, value: value, points: {show: each.points.length < 30}});
    if (!each.band) return;
    const edge = {stroke: "transparent", spanGaps: true, points: {show: false}, class: "edge"};
    made.push({label: each.name + ": high", ...edge, value: value}, {label: each.name + ": low", ...edge, value: value});
    bands.push({series: [made.length - 2, made.length - 1], fill: colour(i) + "2e"});
  });
  return {
    width: width, height: HEIGHT, series: made, bands: bands,
    scales: {x: {time: false}},
    axes: [{...axes, values: (plot, ticks) => ticks.map((tick) => compact.format(tick)), label: axis.name, labelSize: 18, labelFont: "11px system-ui", size: 30},
      {...axes, size: 58, values: (plot, ticks) => ticks.map(show)}],
    cursor: {sync: {key: "charts", setSeries: false}},
  };
}

function dataOf(series) {
  return uPlot.join(series.map(({points, band}) => {
    const columns = [points.map(([place]) => place), points.map(([, value]) => value)];
    if (band) columns.push(points.map(([, value, margin]) => value + margin), points.map(([, value, margin]) => value - margin));
    return columns;
  }));
}

function spoken(chart, series) {
  return chart.title + ": " + series.map(({name, points}) => name + " " + compact.format(points.at(-1)[1])).join(", ");
}

function discard(title) {
  if (!drawn.has(title)) return;
  drawn.get(title).plot.destroy();
  drawn.get(title).figure.remove();
  drawn.delete(title);
}

function draw(chart, series, axis, holder, place) {
  const known = drawn.get(chart.title), shape = JSON.stringify([axis.name, series.map(({name, band}) => [name, band])]);
  if (known && known.shape === shape && known.figure.parentElement === holder) {
    known.plot.setData(dataOf(series), known.plot.scales.x.min === known.low && known.plot.scales.x.max === known.high);
  } else {
    discard(chart.title);
    const figure = element("figure"), caption = element("figcaption", chart.title);
    const help = chart.curves.map((curve) => curve.help).filter(Boolean).join("; ");
    if (help) caption.title = help;
    figure.append(caption);
    figure.setAttribute("role", "group");
    holder.append(figure);
    drawn.set(chart.title, {plot: new uPlot(options(chart, series, axis, figure.clientWidth), dataOf(series), figure), shape: shape, figure: figure});
  }
  const now = drawn.get(chart.title), places = now.plot.data[0];
  now.low = places[0];
  now.high = places.at(-1);
  now.plot.setLegend({idx: places.length - 1});
  now.figure.setAttribute("aria-label", spoken(chart, series));
  if (holder.children[place] !== now.figure) holder.insertBefore(now.figure, holder.children[place] || null);
}

function showCurves() {
  const numbers = [...wanted].filter((number) => curves.has(number));
  const axis = axisOf(numbers), kept = new Set();
  for (const chart of chartsOf(numbers)) {
    const series = plan(chart, numbers, axis);
    if (!series.length) continue;
    let section = [...part("sections").children].find((each) => each.dataset.name === chart.section);
    if (!section) {
      section = element("section");
      section.dataset.name = chart.section;
      section.append(element("h2", chart.section), element("div", "", "charts"));
      part("sections").append(section);
    }
    const charts = section.lastElementChild;
    draw(chart, series, axis, charts, [...charts.children].filter((figure) => kept.has(figure)).length);
    kept.add(drawn.get(chart.title).figure);
  }
  for (const [title, {figure}] of drawn) if (!kept.has(figure)) discard(title);
  for (const section of [...part("sections").children]) if (!section.lastElementChild.children.length) section.remove();
  showTables();
}

function redraw() {
  [...drawn.keys()].forEach(discard);
  showCurves();
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
  let waiting = Promise.resolve();
  source.onopen = () => say("");
  source.onmessage = (message) => {
    const change = JSON.parse(message.data);
    waiting = waiting.then(() => update(change)).catch((error) => say(String(error.message || error)));
  };
  source.onerror = () => say(source.readyState === EventSource.CLOSED
    ? "The dashboard has ended: start scripts/dashboard.py again, and open its new address." : "No connection; trying again.");
}

async function choose(number, on) {
  if (on) wanted.add(number); else wanted.delete(number);
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
  for (const {figure, name} of overview.axes) {
    const option = element("option", name);
    option.value = figure;
    part("axis").append(option);
  }
  part("axis").onchange = showCurves;
  part("played").onchange = showChoice;
  part("newest").onchange = showGame;
  part("choice").ontoggle = showGame;
  part("number").onchange = () => { part("newest").checked = false; showGame(); };
  part("games").addEventListener("pointerdown", () => { part("newest").checked = false; });  // do not replace a game that is looked at
  part("games").addEventListener("keydown", () => { part("newest").checked = false; });
  new ResizeObserver(() => {
    for (const {plot, figure} of drawn.values()) plot.setSize({width: figure.clientWidth, height: HEIGHT});
  }).observe(part("sections"));
  matchMedia("(prefers-color-scheme: dark)").onchange = redraw;
  document.title = overview.runs.map(({name}) => name).join(", ") + " · Keima";
  listen();
}

begin().catch((error) => say(String(error.message || error)));
