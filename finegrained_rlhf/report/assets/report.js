// Shows what a piece of a response or a place of a chart carries, at the pointer, at a tap, or at the arrow keys, and
// searches, orders and filters lists of answers. Without this script the same words are the browser's own tooltips, and
// the lists keep their order.
(() => {
  "use strict";
  const tip = document.getElementById("tip");
  let shown = null;
  let last = null; // where the arrow keys go on from
  let pointer = ""; // where the pointer was last

  function wordsOf(piece) {
    if (piece.title) {
      piece.dataset.tip = piece.title;
      piece.removeAttribute("title");
    }
    return piece.dataset.tip || "";
  }

  function hide() {
    if (shown) shown.classList.remove("on");
    shown = null;
    tip.hidden = true;
  }

  function show(piece) {
    if (piece === shown) return;
    hide();
    const words = wordsOf(piece);
    if (!words) return;
    shown = last = piece;
    piece.classList.add("on");
    tip.textContent = words;
    tip.hidden = false;
    place(piece);
  }

  function place(piece) {
    const at = piece.getClientRects()[0] || piece.getBoundingClientRect();
    const left = Math.min(at.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
    const above = at.top - tip.offsetHeight - 8;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = (above > 8 ? above : at.bottom + 8) + "px";
  }

  const pieceAt = (target) => (target instanceof Element ? target.closest(".w") : null);

  document.addEventListener("pointerover", (event) => {
    const here = event.clientX + " " + event.clientY;
    if (event.pointerType === "touch" || here === pointer) return; // the page moved, not the pointer
    pointer = here;
    const piece = pieceAt(event.target);
    if (piece) show(piece);
    else if (!event.target.closest("svg.chart")) hide();
  });
  document.addEventListener("click", (event) => {
    const piece = pieceAt(event.target);
    const chart = event.target.closest("svg.chart");
    if (piece) show(piece);
    else if (chart) read(chart, event);
    else hide();
  });
  document.addEventListener("pointermove", (event) => (pointer = event.clientX + " " + event.clientY), { passive: true });
  // Charts: the values of all lines at the point next to the pointer, read back from the lines themselves.
  document.querySelectorAll("svg.chart circle > title").forEach((title) => title.remove());
  const scaleOf = (words) => {
    const [low, high, first, last] = words.split(" ").map(Number);
    return (pixel) => low + ((pixel - first) / (last - first)) * (high - low);
  };
  const short = (value) => String(Number(value.toPrecision(4))).replace("-", "\u2212");
  const pointsOf = (line) => line.getAttribute("d").slice(1).split("L").map((point) => point.split(" ").map(Number));

  function read(chart, event) {
    const box = chart.getBoundingClientRect();
    const view = chart.viewBox.baseVal;
    const here = ((event.clientX - box.left) / box.width) * view.width;
    const lines = [...chart.querySelectorAll("path[data-y]:not(.faint)")];
    let at = null;
    for (const line of lines)
      for (const [x] of pointsOf(line)) if (at === null || Math.abs(x - here) < Math.abs(at - here)) at = x;
    if (at === null) return hide();
    const said = [];
    for (const line of lines)
      for (const [x, y] of pointsOf(line))
        if (Math.abs(x - at) < 0.06) said.push((line.dataset.name ? line.dataset.name + ": " : "") + short(scaleOf(line.dataset.y)(y)));
    const where = scaleOf(chart.dataset.x)(at);
    const whole = chart.dataset.label === "step" ? Math.round(where) : short(where);
    hide();
    shown = chart;
    tip.textContent = [chart.dataset.label + " " + whole, ...said].join("\n");
    tip.hidden = false;
    const left = box.left + (at / view.width) * box.width + 10;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = Math.max(8, Math.min(left, room)) + "px";
    tip.style.top = Math.max(8, box.top - tip.offsetHeight - 4) + "px";
  }

  document.addEventListener("pointermove", (event) => {
    const chart = event.target instanceof Element && event.pointerType !== "touch" ? event.target.closest("svg.chart") : null;
    if (chart) read(chart, event);
    else if (shown && shown.matches("svg")) hide();
  });

  // Lists of answers.
  for (const list of document.querySelectorAll(".list")) {
    const tools = list.querySelector(".tools");
    if (!tools) continue;
    const body = list.querySelector(".body");
    const more = body.querySelector(":scope > details");
    const items = [...body.querySelectorAll("article")];
    const [find, order, filter, count] = [".find", ".order", ".filter", ".count"].map((name) => tools.querySelector(name));
    const words = items.map((item) => item.textContent.toLowerCase());
    const valueOf = (item) => {
      const by = order.value;
      const text = by.endsWith("t") ? item.dataset.t : (item.dataset.s || "").split(" ")[by];
      const value = text === undefined || text === "" ? Infinity : Number(text);
      return by.startsWith("-") ? -value : value;
    };
    const passes = (item, i) => {
      const below = (item.dataset.b || "").split(" ").filter(Boolean);
      const kept = filter.value === "" || (filter.value === "any" ? below.length > 0 : below.includes(filter.value));
      return kept && words[i].includes(find.value.trim().toLowerCase());
    };
    const arrange = () => {
      const kept = items.filter(passes);
      for (const item of items) item.hidden = !kept.includes(item);
      kept.sort((a, b) => valueOf(a) - valueOf(b));
      const open = Number(list.dataset.open);
      kept.forEach((item, i) => (more && i >= open ? more.append(item) : body.insertBefore(item, more)));
      if (more) {
        more.hidden = kept.length <= open;
        more.querySelector("summary").textContent = kept.length - open + " more";
      }
      count.textContent = kept.length + " of " + items.length;
    };
    for (const [control, event] of [[find, "input"], [order, "change"], [filter, "change"]]) control.addEventListener(event, arrange);
    tools.hidden = false;
  }

  document.addEventListener(
    "scroll",
    () => {
      if (shown && document.activeElement.contains(shown) && document.activeElement.matches(":focus-visible")) place(shown);
      else hide(); // what the pointer showed is somewhere else now; what a key showed moves along
    },
    { passive: true },
  );
  document.addEventListener("focusin", (event) => {
    if (event.target.classList.contains("text") && event.target.matches(":focus-visible")) {
      const first = event.target.querySelector(".w");
      if (first) show(first);
    }
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const text = document.activeElement;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !text.classList.contains("text")) return;
    const pieces = [...text.querySelectorAll(".w")];
    const next = pieces[pieces.indexOf(last) + step];
    if (!next) return;
    event.preventDefault();
    next.scrollIntoView({ block: "nearest" });
    show(next);
  });
})();
