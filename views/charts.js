"use strict";
// Draws the curves of runs over each other, with uPlot. Pages of runs contain this script, and the dashboard serves it.
const Charts = (() => {
const TIME = "run/seconds", COLOURS = 8, HEIGHT = 220;
const compact = new Intl.NumberFormat("en", {notation: "compact", maximumSignificantDigits: 3});
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

// What is drawn: each run has a name, its charts, and their figures by column.

function chartsOf(runs) {
  // The charts of all runs; one that several runs have gets the curves of all.
  const found = new Map();
  for (const chart of runs.flatMap((run) => run.charts)) {
    const known = found.get(chart.title) || {...chart, curves: []};
    const more = chart.curves.filter(({figure}) => !known.curves.some((curve) => curve.figure === figure));
    found.set(chart.title, {...known, curves: [...known.curves, ...more]});
  }
  return [...found.values()];
}

function scaled({figure, name}, runs) {
  // The axis with its unit's name and size.
  if (figure !== TIME) return {figure: figure, name: name, size: 1};
  const longest = Math.max(...runs.map((run) => run.figures[TIME]?.at(-1) || 0));
  return longest >= 7200 ? {figure: figure, name: "hours", size: 3600} : {figure: figure, name: "minutes", size: 60};
}

function seriesOf(chart, runs, axis) {
  // The series of a chart, each with its points: one for each run and curve that has two points.
  const found = [];
  for (const {name: runName, figures} of runs) {
    const places = figures[axis.figure] || [];
    for (const curve of chart.curves) {
      const values = figures[curve.figure];
      if (!values) continue;
      const points = [];
      places.forEach((place, i) => {
        if (place === null || values[i] === null || (points.length && place / axis.size <= points.at(-1)[0])) return;
        points.push([place / axis.size, values[i], (curve.margin && figures[curve.margin]?.[i]) || 0]);
      });
      if (points.length < 2) continue;
      const name = [runs.length > 1 ? runName : "", curve.name].filter(Boolean).join(" ");
      found.push({name: name || chart.title, points: points, band: Boolean(curve.margin)});
    }
  }
  return found;
}

function options(chart, series, axis, width) {
  const show = chart.unit === "share" ? (value) => (100 * value).toFixed(1) + " %" : (value) => compact.format(value);
  const line = {stroke: style("--line"), width: 1}, axes = {stroke: style("--faint"), grid: line, ticks: line, font: "11px system-ui"};
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

function within(holder) {
  // Charts in sections of this element. `show` draws runs over an axis: a figure and its name.
  const drawn = new Map();
  let last = null;

  function discard(title) {
    if (!drawn.has(title)) return;
    drawn.get(title).plot.destroy();
    drawn.get(title).figure.remove();
    drawn.delete(title);
  }

  function draw(chart, series, axis, charts, place) {
    const known = drawn.get(chart.title), shape = JSON.stringify([axis.name, series.map(({name, band}) => [name, band])]);
    if (known && known.shape === shape && known.figure.parentElement === charts) {
      known.plot.setData(dataOf(series), known.plot.scales.x.min === known.low && known.plot.scales.x.max === known.high);
    } else {
      discard(chart.title);
      const figure = element("figure"), caption = element("figcaption", chart.title);
      const help = chart.curves.map((curve) => curve.help).filter(Boolean).join("; ");
      if (help) caption.title = help;
      figure.append(caption);
      figure.setAttribute("role", "group");
      charts.append(figure);
      drawn.set(chart.title, {plot: new uPlot(options(chart, series, axis, figure.clientWidth), dataOf(series), figure), shape: shape, figure: figure});
    }
    const now = drawn.get(chart.title), places = now.plot.data[0];
    now.low = places[0];
    now.high = places.at(-1);
    now.plot.setLegend({idx: places.length - 1});
    now.figure.setAttribute("aria-label", spoken(chart, series));
    if (charts.children[place] !== now.figure) charts.insertBefore(now.figure, charts.children[place] || null);
  }

  function show(runs, over) {
    last = [runs, over];
    const axis = scaled(over, runs), kept = new Set();
    for (const chart of chartsOf(runs)) {
      const series = seriesOf(chart, runs, axis);
      if (!series.length) continue;
      let section = [...holder.children].find((each) => each.dataset.name === chart.section);
      if (!section) {
        section = element("section");
        section.dataset.name = chart.section;
        section.append(element("h2", chart.section), element("div", "", "charts"));
        holder.append(section);
      }
      const charts = section.lastElementChild;
      draw(chart, series, axis, charts, [...charts.children].filter((figure) => kept.has(figure)).length);
      kept.add(drawn.get(chart.title).figure);
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
