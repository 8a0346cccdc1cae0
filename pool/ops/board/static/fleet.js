// The picture: a canvas with one cell per worker, laid out by profile and place. An update draws only the cells that changed.
"use strict";
class Fleet {
  constructor(holder, states) {
    this.holder = holder;
    this.states = states;
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("aria-hidden", "true");
    holder.append(this.canvas);
    this.pen = this.canvas.getContext("2d");
    this.cells = new Map(); // place -> {state, profile, org, leaving}
    this.slots = new Map(); // place -> profile, including empty places
    this.order = []; // places in drawing order
    this.xs = []; this.ys = []; // by place
    this.width = 0;
    this.labels = []; // [profile, y]
    this.profiles = [];
    this.only = new Set();
    this.found = null;
    this.chosen = null;
    this.readColours();
    // Reading the width during an update would force a second layout of the page.
    new ResizeObserver(([entry]) => { this.width = entry.contentRect.width; this.layOut(); }).observe(holder);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.readColours(); this.layOut(); });
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    this.colours = this.states.map((s) => style.getPropertyValue(`--s-${s}`).trim());
    this.leavingColour = style.getPropertyValue("--s-leaving").trim();
    this.textColour = style.getPropertyValue("--faint").trim();
    this.markColour = style.getPropertyValue("--text").trim();
    this.cardColour = style.getPropertyValue("--card").trim();
  }

  // Apply an update: the whole picture in columns, or some cells.
  update(change) {
    if (change.profiles) this.profiles = change.profiles;
    if (change.steps) {
      this.takeAll(change);
      return;
    }
    // A worker in a place that already exists does not change the layout; only a new place does.
    let grown = false;
    for (const [place, state, profile, org, leaving] of change.set) {
      this.cells.set(place, { state, profile, org, leaving });
      if (this.slots.get(place) === profile) this.draw(place);
      else { this.slots.set(place, profile); grown = true; }
    }
    for (const place of change.gone) { this.cells.delete(place); if (this.xs[place] !== undefined) this.wipe(place); }
    const empty = this.slots.size - this.cells.size;
    if (empty > Math.max(3, this.slots.size / 4)) this.closeRanks();
    else if (grown) this.layOut();
    else this.label();
  }

  takeAll(change) {
    const before = this.cells;
    this.cells = new Map();
    let place = -1, same = before.size === change.steps.length && before.size === this.slots.size;
    change.steps.forEach((step, i) => {
      place += step;
      const cell = before.get(place) || { state: 0, profile: -1, org: -1, leaving: 0 };
      same = same && cell.profile === change.profile[i];
      cell.state = change.states.charCodeAt(i) - 48;
      cell.profile = change.profile[i];
      cell.org = change.org[i];
      cell.leaving = 0;
      this.cells.set(place, cell);
    });
    if (change.leaving.length) {
      const cells = [...this.cells.values()];
      for (const i of change.leaving) cells[i].leaving = 1;
    }
    if (same) this.drawAll(); else this.closeRanks();
  }

  // Remove empty places from the layout.
  closeRanks() {
    this.slots = new Map([...this.cells].map(([place, cell]) => [place, cell.profile]));
    this.layOut();
  }

  layOut() {
    const width = this.width;
    if (!width) return;
    const count = this.slots.size;
    const size = count <= 150 ? 18 : count <= 600 ? 14 : count <= 2500 ? 10 : 7;
    this.size = size;
    this.gap = size > 9 ? 2 : 1;
    const step = size + this.gap;
    const perRow = Math.max(1, Math.floor((width + this.gap) / step));
    this.perRow = perRow;
    const groups = new Map();
    for (const [place, profile] of this.slots) {
      if (!groups.has(profile)) groups.set(profile, []);
      groups.get(profile).push(place);
    }
    this.order = [];
    this.xs = []; this.ys = [];
    this.labels = [];
    let y = 0;
    for (const profile of [...groups.keys()].sort((a, b) => this.profiles[a] < this.profiles[b] ? -1 : 1)) {
      const places = groups.get(profile).sort((a, b) => a - b);
      this.labels.push([profile, y + 11]);
      y += 17;
      places.forEach((place, i) => {
        this.xs[place] = (i % perRow) * step;
        this.ys[place] = y + Math.floor(i / perRow) * step;
        this.order.push(place);
      });
      y += Math.ceil(places.length / perRow) * step + 8;
    }
    const height = Math.max(y - 8, 0);
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.pen.scale(scale, scale);
    this.drawAll();
  }

  // Draw the name of each profile with its number of workers.
  label() {
    const pen = this.pen, counts = new Map();
    for (const cell of this.cells.values()) counts.set(cell.profile, (counts.get(cell.profile) || 0) + 1);
    for (const [profile, y] of this.labels) {
      const name = this.profiles[profile];
      pen.clearRect(0, y - 11, this.width, 15);
      pen.font = "600 12px system-ui, sans-serif";
      pen.fillStyle = this.markColour;
      pen.fillText(name, 0, y);
      const after = pen.measureText(name).width + 7;
      pen.font = "12px system-ui, sans-serif";
      pen.fillStyle = this.textColour;
      pen.fillText(String(counts.get(profile) || 0), after, y);
    }
    this.holder.dataset.cells = String(this.cells.size);
    this.holder.classList.toggle("none", this.cells.size === 0);
  }

  drawAll() {
    const pen = this.pen;
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.label();
    // Draw cells of the same colour together, because changing the colour is expensive.
    const lots = new Map();
    for (const place of this.order) {
      const cell = this.cells.get(place);
      if (!cell) continue;
      const key = cell.state + (this.isFaint(cell) ? 100 : 0);
      const lot = lots.get(key);
      if (lot) lot.push(place); else lots.set(key, [place]);
    }
    for (const [key, places] of lots) {
      pen.globalAlpha = key >= 100 ? 0.15 : 1;
      pen.fillStyle = this.colours[key % 100];
      pen.beginPath();
      for (const place of places) this.outline(place);
      pen.fill();
    }
    pen.globalAlpha = 1;
    for (const place of this.order) if (this.cells.get(place)?.leaving) this.markLeaving(place);
    if (this.chosen !== null) this.mark(this.chosen);
  }

  outline(place) {
    const x = this.xs[place], y = this.ys[place];
    if (this.size > 9) this.pen.roundRect(x, y, this.size, this.size, 2.5);
    else this.pen.rect(x, y, this.size, this.size);
  }

  draw(place) {
    const cell = this.cells.get(place);
    if (this.xs[place] === undefined || !cell) return;
    this.wipe(place);
    const pen = this.pen;
    pen.globalAlpha = this.isFaint(cell) ? 0.15 : 1;
    pen.fillStyle = this.colours[cell.state];
    pen.beginPath();
    this.outline(place);
    pen.fill();
    pen.globalAlpha = 1;
    if (cell.leaving) this.markLeaving(place);
    if (place === this.chosen) this.mark(place);
  }

  wipe(place) {
    const x = this.xs[place], y = this.ys[place];
    this.pen.clearRect(x - this.gap / 2, y - this.gap / 2, this.size + this.gap, this.size + this.gap);
  }

  markLeaving(place) {
    const x = this.xs[place], y = this.ys[place];
    this.pen.fillStyle = this.leavingColour;
    this.pen.beginPath();
    this.pen.moveTo(x + this.size / 2, y);
    this.pen.lineTo(x + this.size, y);
    this.pen.lineTo(x + this.size, y + this.size / 2);
    this.pen.fill();
  }

  mark(place) {
    if (this.xs[place] === undefined) return;
    this.pen.strokeStyle = this.markColour;
    this.pen.lineWidth = 2;
    this.pen.strokeRect(this.xs[place] + 1, this.ys[place] + 1, this.size - 2, this.size - 2);
  }

  isFaint(cell) {
    if (this.only.size && !this.only.has(this.states[cell.state])) return true;
    return this.found !== null && !this.found(cell);
  }

  choose(place) {
    const before = this.chosen;
    this.chosen = place;
    if (before !== null && before !== place) this.draw(before);
    if (place !== null) this.draw(place);
  }

  at(x, y) {
    const wide = this.size + this.gap;
    const found = this.order.find((p) => x >= this.xs[p] && x < this.xs[p] + wide && y >= this.ys[p] && y < this.ys[p] + wide);
    return found !== undefined && this.cells.has(found) ? found : null;
  }

  // Return the place of the next worker in a direction.
  step(by) {
    const standing = this.order.filter((p) => this.cells.has(p));
    if (!standing.length) return null;
    const now = standing.indexOf(this.chosen);
    return standing[now < 0 ? 0 : Math.min(Math.max(now + by, 0), standing.length - 1)];
  }
}
