"use strict";
// Draws the charts of runs over each other, with uPlot, from the description of run_charts.py. Pages of runs contain this
// script, and the dashboard serves it.
const Charts = (() => {
const TIME = "run/seconds", COLOURS = 8, HEIGHT = 220;
const FEW_POINTS = 30, MARK = 5, REACH = 20;  // a curve with fewer points shows each; a mark's distance from its centre to its corners; pixels
const MOST_NAMES = 16, HALF_BAR = 0.36, FULL_BAR = 2 * HALF_BAR;  // readable names of rows below each other; of a bar's height, in rows
const compact = new Intl.NumberFormat("en", {notation: "compact", maximumSignificantDigits: 3});
const formats = {
  "": (value) => compact.format(value),
  share: (value) => (100 * value).toFixed(1) + " %",
  money: (value) => (value < 0 ? "-$" : "$") + compact.format(Math.abs(value)),
};
const styles = getComputedStyle(document.documentElement);

function element(kind, text = "", className = "") {
  const made = document.createElement(kind);
  made.textContent = text;
  made.className = className;
  return made;
}

function style(name) {
  return styles.getPropertyValue(name).trim();
}

function colour(i) {
  return style("--c" + i % COLOURS);
}

// What is drawn of runs.

function chartsOf(runs) {
  // The charts of all runs; one that several runs have gets the curves of all.
  const found = new Map();
  for (const chart of runs.flatMap((run) => run.charts)) {
    const known = found.get(chart.title) || {...chart, curves: []};
    const more = chart.curves.filter(({metric}) => !known.curves.some((curve) => curve.metric === metric));
    found.set(chart.title, {...known, curves: [...known.curves, ...more]});
  }
  return [...found.values()];
}

function scaled({metric, name}, runs) {
  // The axis with its unit's name and size.
  if (metric !== TIME) return {metric: metric, name: name, size: 1, show: formats[""]};
  const longest = Math.max(...runs.map(({metrics}) => metrics[TIME]?.at(-1) || 0));
  return longest >= 7200 ? {metric: metric, name: "hours", size: 3600, show: formats[""]} : {metric: metric, name: "minutes", size: 60, show: formats[""]};
}

function pointsOf(curve, axis, metrics) {
  // Place, value and margin wherever both metrics are known and the run goes on.
  const places = metrics[axis.metric] || [], values = metrics[curve.metric] || [], points = [];
  places.forEach((place, i) => {
    if (place === null || values[i] === null || values[i] === undefined || (points.length && place / axis.size <= points.at(-1)[0])) return;
    points.push([place / axis.size, values[i], (curve.margin && metrics[curve.margin]?.[i]) || 0]);
  });
  return points;
}

function seriesOf(chart, runs, axis) {
  // The series of a chart, each with its points; none if no line has two.
  const found = [], shared = new Set();
  for (const {name: runName, metrics} of runs) {
    for (const curve of chart.curves) {
      const points = pointsOf(curve, axis, metrics);
      if (points.length < (curve.mark ? 1 : 2) || shared.has(curve.metric)) continue;
      if (curve.shared) shared.add(curve.metric);
      const name = [runs.length > 1 && !curve.shared ? runName : "", curve.name].filter(Boolean).join(" ");
      const number = curve.colour === null ? found.filter(({mark}) => !mark).length : curve.colour;
      found.push({name: name || chart.title, points: points, band: Boolean(curve.margin), mark: curve.mark, hollow: curve.hollow, colour: number});
    }
  }
  return found.some(({mark}) => !mark) ? found : [];
}

// How uPlot draws it.

function trianglesOf(mark) {
  // The triangles of a series, which point up or down.
  return (plot, number, first, last) => {
    const path = new Path2D(), far = MARK * uPlot.pxRatio, tip = mark === "up" ? -far : far;
    const {left, top, width, height} = plot.bbox, clip = new Path2D();
    clip.rect(left - far, top - far, width + 2 * far, height + 2 * far);
    for (let i = first; i <= last; i++) {
      const value = plot.data[number][i];
      if (value === null || value === undefined) continue;
      const x = plot.valToPos(plot.data[0][i], "x", true), y = plot.valToPos(value, "y", true);
      path.moveTo(x, y + tip);
      path.lineTo(x - far, y - tip);
      path.lineTo(x + far, y - tip);
      path.closePath();
    }
    return {stroke: path, fill: path, clip: clip, flags: 3};
  };
}

function barsOf(heights, most) {
  // A part of the rows: in each span of time as high as its share of the most.
  return (plot) => {
    const path = new Path2D(), places = plot.data[0], at = (value, scale) => plot.valToPos(value, scale, true);
    heights.forEach((row, number) => row.forEach((height, i) => {
      if (!height) return;
      const x = at(places[i], "x"), bottom = at(number + HALF_BAR, "y");
      path.rect(x, bottom, at(places[i + 1], "x") - x, at(number + HALF_BAR - FULL_BAR * height / most, "y") - bottom);
    }));
    return {stroke: null, fill: path, clip: null, flags: 1};
  };
}

function valueOf(show, {atRest = true} = {}) {
  // A value of the legend: that of the place that is looked at; if there is none, the last value.
  const known = (number) => number !== null && number !== undefined;
  return (plot, number, series, i) => {
    const value = known(i) ? number : atRest && !known(plot.cursor.idx) ? plot.data[series].findLast(known) : null;
    return known(value) ? show(value) : "";
  };
}

function optionsOf(axis, series, more) {
  const line = {stroke: style("--line"), width: 1}, axes = {stroke: style("--faint"), grid: line, ticks: line, font: "11px system-ui"};
  return {
    height: HEIGHT, series: [{label: axis.name, value: valueOf(axis.show)}, ...series], bands: more.bands || [],
    scales: {x: {time: false}, y: more.scale || {}},
    axes: [{...axes, values: (plot, ticks) => ticks.map(axis.show), label: axis.name, labelSize: 18, labelFont: "11px system-ui", size: 30}, {...axes, ...more.axis}],
    cursor: {sync: {key: axis.metric, setSeries: false}, hover: {prox: more.reach || 0}, points: {fill: (plot, i) => plot.series[i].stroke(plot, i)}},
  };
}

function curvesPlan(chart, runs, chosen) {
  // What draws a chart of curves; null if there is nothing to draw.
  const axis = chart.over ? {metric: chart.over, name: chart.over_name, size: 1, show: formats[chart.over_unit]} : chosen;
  const series = seriesOf(chart, runs, axis), show = formats[chart.unit];
  if (!series.length) return null;
  const options = () => {
    const value = valueOf(show), made = [], bands = [];
    for (const each of series) {
      const ink = colour(each.colour), points = {show: each.points.length < FEW_POINTS, fill: style("--paper")};
      const mark = {paths: () => null, value: valueOf(show, {atRest: false}), points: {show: true, stroke: ink, fill: each.hollow ? style("--paper") : ink, width: 1.3, paths: trianglesOf(each.mark)}};
      made.push({label: each.name, stroke: ink, width: 1.8, spanGaps: true, value: value, ...(each.mark ? mark : {points: points})});
      if (!each.band) continue;
      const edge = {stroke: "transparent", spanGaps: true, points: {show: false}, class: "edge", value: value};
      made.push({label: each.name + ": high", ...edge}, {label: each.name + ": low", ...edge});
      bands.push({series: [made.length - 1, made.length], fill: ink + "2e"});
    }
    // Runs have their points at different places: values of those nearby are shown, but no mark that is elsewhere.
    const reach = (plot, number) => runs.length > 1 && made[number - 1]?.points.paths === undefined ? REACH : 0;
    return optionsOf(axis, made, {bands: bands, reach: reach, axis: {size: 58, values: (plot, ticks) => ticks.map(show)}});
  };
  const data = uPlot.join(series.map(({points, band}) => {
    const columns = [points.map(([place]) => place), points.map(([, value]) => value)];
    if (band) columns.push(points.map(([, value, margin]) => value + margin), points.map(([, value, margin]) => value - margin));
    return columns;
  }));
  return {
    title: chart.title, section: chart.section, axis: axis, options: options, data: data,
    help: chart.curves.map((curve) => curve.help).filter(Boolean).join("; "),
    spoken: series.map(({name, points}) => name + " " + show(points.at(-1)[1])).join(", "),
    shape: JSON.stringify([axis.name, series.map(({name, band, mark}) => [name, band, mark])]),
  };
}

function rowsPlan(chart, title, axis) {
  // What draws a chart of rows.
  const sums = chart.parts.map(({heights}) => chart.ends.map((end, i) => heights.reduce((sum, row) => sum + row[i], 0)));
  const step = Math.ceil(chart.rows.length / MOST_NAMES), named = chart.rows.map((name, i) => i).filter((i) => i % step === 0);
  const options = () => optionsOf(axis, chart.parts.map((part) => (
    {label: part.name, stroke: colour(part.colour), fill: colour(part.colour), width: 0, value: valueOf(formats[""]), points: {show: false}, paths: barsOf(part.heights, chart.most)})),
  {scale: {range: [-0.5, chart.rows.length - 0.5], dir: -1}, axis: {size: 90, splits: () => named, values: () => named.map((i) => chart.rows[i])}});
  return {
    title: title, section: chart.section, axis: axis, options: options, help: "",
    data: [[0, ...chart.ends.map((end) => end / axis.size)], ...sums.map((column) => [null, ...column])],
    spoken: chart.rows.length + " rows; at the end " + chart.parts.map((part, i) => part.name + " " + compact.format(sums[i].at(-1))).join(", "),
    shape: JSON.stringify([axis.name, chart]),
  };
}

function plansOf(runs, over) {
  const axis = scaled(over, runs), time = scaled({metric: TIME, name: ""}, runs), named = (run, title) => runs.length > 1 ? run.name + ": " + title : title;
  const curves = chartsOf(runs).map((chart) => curvesPlan(chart, runs, axis)).filter(Boolean);
  const rows = runs.flatMap((run) => (run.rows || []).map((chart) => rowsPlan(chart, named(run, chart.title), time)));
  return [...curves, ...rows];
}

// The charts on the page.

function within(holder) {
  // Charts in sections of this element. `show` draws runs over an axis: a metric and its name.
  const drawn = new Map();
  let last = null;

  function discard(title) {
    if (!drawn.has(title)) return;
    drawn.get(title).plot.destroy();
    drawn.get(title).figure.remove();
    drawn.delete(title);
  }

  function together(known) {
    // The charts over the same axis, which are enlarged together.
    return [...drawn.values()].filter(({axis}) => axis.metric === known.axis.metric);
  }

  function zoom(known, factor) {
    // Show so many times the part that is shown, around the place that is looked at.
    const {min, max} = known.plot.scales.x, places = known.plot.data[0], middle = places[known.plot.cursor.idx] ?? (min + max) / 2;
    const low = Math.max(known.low, middle - factor * (middle - min)), high = Math.min(known.high, middle + factor * (max - middle));
    if (high > low) for (const {plot} of together(known)) plot.setScale("x", {min: low, max: high});
  }

  function step(known, by) {
    const {plot} = known, places = plot.data[0], inside = places.map((place, i) => i).filter((i) => places[i] >= plot.scales.x.min && places[i] <= plot.scales.x.max);
    const now = inside.indexOf(plot.cursor.idx), next = now < 0 ? inside.length - 1 : Math.min(Math.max(now + by, 0), inside.length - 1);
    if (inside.length) plot.setCursor({left: plot.valToPos(places[inside[next]], "x"), top: plot.over.clientHeight / 2}, true, true);
  }

  const keys = {
    ArrowLeft: (known) => step(known, -1), ArrowRight: (known) => step(known, 1),
    "+": (known) => zoom(known, 0.5), "=": (known) => zoom(known, 0.5), "-": (known) => zoom(known, 2),
    Escape: (known) => together(known).forEach(({plot, low, high}) => plot.setScale("x", {min: low, max: high})),
  };

  function begin(plan, charts) {
    const figure = element("figure"), caption = element("figcaption", plan.title);
    if (plan.help) caption.title = plan.help;
    figure.append(caption);
    figure.setAttribute("role", "group");
    figure.tabIndex = 0;
    figure.addEventListener("keydown", (event) => {
      if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation();
      keys[event.key](drawn.get(plan.title));
    });
    charts.append(figure);
    const plot = new uPlot({...plan.options(), width: figure.clientWidth}, plan.data, figure);
    drawn.set(plan.title, {plot: plot, shape: plan.shape, axis: plan.axis, figure: figure});
  }

  function draw(plan, charts, place) {
    const known = drawn.get(plan.title);
    if (known && known.shape === plan.shape && known.figure.parentElement === charts) {
      known.plot.setData(plan.data, known.plot.scales.x.min === known.low && known.plot.scales.x.max === known.high);
    } else {
      discard(plan.title);
      begin(plan, charts);
    }
    const now = drawn.get(plan.title), places = plan.data[0];
    now.low = places[0];
    now.high = places.at(-1);
    now.figure.setAttribute("aria-label", plan.title + ": " + plan.spoken);
    if (charts.children[place] !== now.figure) charts.insertBefore(now.figure, charts.children[place] || null);
  }

  function show(runs, over) {
    last = [runs, over];
    const kept = new Set();
    for (const plan of plansOf(runs, over)) {
      let section = [...holder.children].find((each) => each.dataset.name === plan.section);
      if (!section) {
        section = element("section");
        section.dataset.name = plan.section;
        section.append(element("h2", plan.section), element("div", "", "charts"));
        holder.append(section);
      }
      const charts = section.lastElementChild;
      draw(plan, charts, [...charts.children].filter((figure) => kept.has(figure)).length);
      kept.add(drawn.get(plan.title).figure);
    }
    for (const [title, {figure}] of drawn) if (!kept.has(figure)) discard(title);
    for (const section of [...holder.children]) if (!section.lastElementChild.children.length) section.remove();
  }

  new ResizeObserver(() => {
    for (const {plot, figure} of drawn.values()) plot.setSize({width: figure.clientWidth, height: HEIGHT});
  }).observe(holder);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    [...drawn.keys()].forEach(discard);
    if (last) show(...last);
  });
  return {show: show};
}

return {within: within};
})();
