// Runs the script of a page on a stand-in for a browser's document, presses keys and buttons, and prints what is shown as JSON.
"use strict";
const fs = require("fs");

const page = fs.readFileSync(process.argv[2], "utf8");
const presses = JSON.parse(process.argv[3]);
const data = page.match(/<script type="application\/json" id="data">([^]*?)<\/script>/)[1];
const script = page.match(/<script>([^]*?)<\/script>/)[1];

class Element {
  constructor(kind) { this.tagName = kind.toUpperCase(); this.style = {}; this.children = []; this.listeners = {}; this.textContent = ""; }
  append(...more) { this.children.push(...more); }
  replaceChildren(...all) { this.children = all; }
  addEventListener(name, does) { this.listeners[name] = does; }
  blur() {}
}

const byId = {};
const listeners = {};
globalThis.document = {
  getElementById: (id) => byId[id] || (byId[id] = new Element("div")),
  createElement: (kind) => new Element(kind),
  addEventListener: (name, does) => { listeners[name] = does; },
};
document.getElementById("data").textContent = data;
document.getElementById("games").hidden = true;
globalThis.setInterval = (does) => { globalThis.tick = does; return 1; };
globalThis.clearInterval = () => { globalThis.tick = null; };

const shown = [];
function look() {
  const board = byId.board.children[0];
  const texts = board.children.length ? board.children.map((cell) => String(cell.textContent)) : board.textContent;
  shown.push({said: byId.said.textContent, board: texts, policy: byId.policy.children.map((row) => row.children[0].textContent)});
}

new Function(script)();
look();
for (const press of presses) {
  if (press.key) listeners.keydown({key: press.key, target: new Element("body"), preventDefault: () => {}});
  if (press.click) byId[press.click].listeners.click();
  if (press.slide !== undefined) { byId.slider.value = String(press.slide); byId.slider.listeners.input(); }
  if (press.choose !== undefined) { byId.game.selectedIndex = press.choose; byId.game.listeners.change(); }
  if (press.tick) globalThis.tick();
  look();
}
process.stdout.write(JSON.stringify({shown, hidden: byId.games.hidden, options: byId.game.children.map((option) => option.textContent)}));
