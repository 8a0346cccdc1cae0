// Live updates: panels as HTML rendered by the server, cells as numbers. The performance measure "update" has the duration of each.
"use strict";
(() => {
  const picture = document.getElementById("fleet");
  const tip = document.getElementById("cell");
  const spoken = document.getElementById("cell-said");
  const live = document.getElementById("live");
  const fleet = new Fleet(picture, picture.dataset.states.split(" "));
  const panels = new Map([...document.querySelectorAll("[data-panel]")].map((el) => [el.dataset.panel, el]));

  function replace(name, html) {
    const panel = panels.get(name);
    if (!panel) return;
    const focused = panel.contains(document.activeElement) ? document.activeElement : null;
    const again = focused && (focused.id ? `#${CSS.escape(focused.id)}` : focused.dataset.state ? `[data-state="${focused.dataset.state}"]` : null);
    panel.innerHTML = html;
    if (again) panel.querySelector(again)?.focus();
    if (name === "legend") showOnly();
    ages.show(panel);
  }

  function say(text, on) {
    live.className = `live ${on ? "on" : "off"}`;
    live.querySelector(".said").textContent = text;
  }

  function heard(event) {
    performance.mark("update-began");
    const update = JSON.parse(event.data);
    if (update.at) ages.heard(update.at);
    for (const [name, html] of Object.entries(update.panels || {})) replace(name, html);
    if (update.cells) { fleet.update(update.cells); if (fleet.found) search(); }
    if (update.trouble) say(`not updated: ${update.trouble}`, false);
    else say(`live · ${update.at ? update.at.slice(11, 19) : ""} UTC`, true);
    performance.measure("update", { start: "update-began", detail: event.data.length });
  }

  // The browser reopens a broken stream, but not a refused one, so we reopen that ourselves.
  let source = null;
  function listen() {
    source = new EventSource("/events");
    source.onmessage = heard;
    source.onerror = () => {
      say("connection lost, reconnecting", false);
      if (source.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
    };
  }
  listen();
  addEventListener("pagehide", () => source.close());

  // Legend and search: cells that do not match are drawn faint.
  function showOnly() {
    for (const button of document.querySelectorAll("[data-state]")) button.setAttribute("aria-pressed", String(fleet.only.has(button.dataset.state)));
  }
  panels.get("legend").addEventListener("click", (event) => {
    const state = event.target.closest("[data-state]")?.dataset.state;
    if (!state) return;
    if (!fleet.only.delete(state)) fleet.only.add(state);
    showOnly();
    fleet.drawAll();
  });
  const find = document.getElementById("find");
  let sought = 0;
  async function search() {
    const mine = ++sought, text = find.value.trim();
    const answer = text && !text.startsWith("w-") ? await fetch(`/fleet/orgs?part=${encodeURIComponent(text)}`).catch(() => null) : null;
    const orgs = answer && answer.ok ? new Set(await answer.json()) : null;
    if (mine !== sought) return;
    fleet.found = orgs && ((cell) => orgs.has(cell.org));
    fleet.drawAll();
  }
  let typing = null;
  find.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(search, 100); });
  find.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && find.value.trim().startsWith("w-")) location.href = `/workers/${encodeURIComponent(find.value.trim())}`;
  });

  // Hover, keyboard, click.
  let asked = 0;
  let pending = null;
  function hide() { asked += 1; clearTimeout(pending); tip.hidden = true; }
  function tell(place, delay) {
    clearTimeout(pending);
    const mine = ++asked;
    pending = setTimeout(async () => {
      const answer = await fetch(`/fleet/${place}`).catch(() => null);
      if (!answer || !answer.ok || mine !== asked) return;
      show(place, await answer.json());
    }, delay);
  }
  function line(tag, text, name) { const el = document.createElement(tag); el.textContent = text; if (name) el.className = name; return el; }
  function show(place, report) {
    if (fleet.xs[place] === undefined) return;
    const list = document.createElement("ul");
    for (const entry of report.story.slice().reverse()) list.append(line("li", `${entry.at.slice(11, 19)}  ${entry.text}`));
    tip.replaceChildren(line("b", report.id, "mono"), line("p", report.cause || report.now), line("p", report.claimable.can ? `Claimable ${report.claimable.why}.` : `Not claimable: ${report.claimable.why}.`, "faint"), list);
    tip.hidden = false;
    const left = Math.min(fleet.xs[place] + 14, Math.max(0, picture.clientWidth - tip.offsetWidth));
    tip.style.left = `${picture.offsetLeft + left}px`;
    tip.style.top = `${picture.offsetTop + fleet.ys[place] + fleet.size + 8}px`;
    spoken.textContent = `${report.id}. ${report.cause || report.now}`;
  }
  function placeUnder(event) {
    const box = fleet.canvas.getBoundingClientRect();
    return fleet.at(event.clientX - box.left, event.clientY - box.top);
  }
  async function open(place) {
    const answer = await fetch(`/fleet/${place}`).catch(() => null);
    if (answer && answer.ok) location.href = (await answer.json()).page;
  }
  let over = null;
  fleet.canvas.addEventListener("mousemove", (event) => {
    const place = placeUnder(event);
    if (place === over) return;
    over = place;
    fleet.canvas.style.cursor = place === null ? "" : "pointer";
    if (place === null) hide(); else tell(place, 80);
  });
  fleet.canvas.addEventListener("mouseleave", () => { over = null; hide(); });
  fleet.canvas.addEventListener("click", (event) => { const place = placeUnder(event); if (place !== null) open(place); });
  picture.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: fleet.perRow, ArrowUp: -fleet.perRow, Home: -1e9, End: 1e9 }[event.key];
    if (by !== undefined) {
      event.preventDefault();
      const place = fleet.step(by);
      if (place !== null) { fleet.choose(place); tell(place, 150); }
    } else if (event.key === "Enter" && fleet.chosen !== null) open(fleet.chosen);
    else if (event.key === "Escape") { fleet.choose(null); hide(); }
  });
  picture.addEventListener("blur", () => { fleet.choose(null); hide(); });
})();
