// Updates the age in every <time data-at> each second. Ages are relative to the pool's clock, as sent with the last update.
"use strict";
const ages = (() => {
  let offset = 0;
  const said = (s) =>
    s < 1 ? "now" : s < 120 ? `${Math.floor(s)} s` : s < 7200 ? `${Math.floor(s / 60)} min` : s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${Math.floor(s / 86400)} days`;
  const show = (root) => {
    const now = Date.now() - offset;
    for (const el of root.querySelectorAll("time[data-at]")) {
      const text = said(Math.max(0, (now - Date.parse(el.dataset.at)) / 1000));
      if (el.textContent !== text) el.textContent = text;
    }
  };
  return { heard: (at) => { offset = Date.now() - Date.parse(at); }, show };
})();
setInterval(() => ages.show(document), 1000);
ages.show(document);
