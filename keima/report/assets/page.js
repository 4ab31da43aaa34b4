"use strict";
// Fills the page of page.html: the curves of its runs, and its games.
{
const part = (id) => document.getElementById(id), contained = (id) => JSON.parse(part(id).textContent);
const {axes, runs} = contained("drawn"), charts = Charts.within(part("sections")), boxes = new Map();

function showCurves() {
  charts.show(runs.filter((run) => boxes.get(run).checked), axes.find(({metric}) => metric === part("axis").value));
}

for (const run of runs) {
  const label = document.createElement("label"), box = document.createElement("input");
  box.type = "checkbox";
  box.checked = true;
  box.onchange = showCurves;
  label.append(box, " " + run.name);
  part("runs").append(label);
  boxes.set(run, box);
}
for (const {metric, name} of axes) {
  if (runs.some(({metrics}) => metrics[metric])) part("axis").append(new Option(name, metric));
}
part("axis").onchange = showCurves;
part("runs").hidden = runs.length < 2;
part("curves").hidden = !runs.length;
if (runs.length) showCurves();
Games.show(contained("data"), document);
}
