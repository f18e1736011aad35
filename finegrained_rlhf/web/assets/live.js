// Draws a page again while what it shows changes, sends a form when a choice is made, and keeps in the address how a
// list of answers is coloured, searched, ordered and filtered. Without it pages are as of when they were asked for.
(() => {
  "use strict";
  const QUICK = 2000;
  const SLOW = 10000;

  // -- Live: a small question every few seconds; the page itself only where something changed.
  const live = document.querySelector("[data-live]");
  let version = live ? live.dataset.version : "";

  async function redraw() {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const ticked = [...document.querySelectorAll("input[name=run]:checked")].map((box) => box.value);
    for (const part of document.querySelectorAll("[data-live], [data-live-part]")) {
      const next = fresh.getElementById(part.id);
      if (!next) continue;
      const open = [...part.querySelectorAll("details")].map((one) => one.open);
      const chosen = [...part.querySelectorAll("input:checked[id]")].map((one) => one.id);
      next.querySelectorAll("svg.chart circle > title").forEach((title) => title.remove());
      part.replaceChildren(...document.importNode(next, true).childNodes);
      part.querySelectorAll("details").forEach((one, i) => (one.open = open[i] ?? one.open));
      chosen.map((id) => document.getElementById(id)).forEach((input) => input && (input.checked = true));
    }
    for (const box of document.querySelectorAll("input[type=checkbox][name=run]")) box.checked = ticked.includes(box.value);
    version = fresh.querySelector("[data-live]").dataset.version;
  }

  async function ask() {
    let pause = SLOW;
    try {
      if (!document.hidden) {
        const now = await (await fetch(live.dataset.live)).json();
        if (now.running) pause = QUICK;
        if (now.version && now.version !== version) await redraw();
      }
      document.body.classList.remove("away");
    } catch {
      document.body.classList.add("away"); // the server is not there
    }
    setTimeout(ask, pause);
  }
  if (live) setTimeout(ask, QUICK);

  // -- A choice is sent at once; the button is for those without a script.
  for (const form of document.forms) {
    const choices = form.querySelectorAll("select.go");
    choices.forEach((choice) => choice.addEventListener("change", () => form.requestSubmit()));
    if (choices.length && !form.querySelector("input[type=search]")) form.querySelector("button").hidden = true;
    form.addEventListener("submit", () => {
      for (const field of form.elements) if (field.name && field.value === "" && field.type !== "checkbox") field.disabled = true;
    });
  }
  addEventListener("pageshow", () => document.querySelectorAll("form :disabled").forEach((field) => field.type !== "checkbox" && (field.disabled = false)));

  // -- What a list is coloured, searched, ordered and filtered by stands in the address.
  const KEPT = ".pick, .find, .order, .filter";
  const address = new URL(location.href);
  for (const control of document.querySelectorAll(KEPT)) {
    const key = control.matches(".pick") ? control.name + "-colour" : control.id;
    const said = address.searchParams.get(key);
    if (said !== null && control.matches(".pick")) control.checked = control.id === said;
    else if (said !== null) {
      control.value = said;
      control.dispatchEvent(new Event(control.matches(".find") ? "input" : "change", { bubbles: true }));
    }
    control.addEventListener(control.matches(".find") ? "input" : "change", () => {
      const value = control.matches(".pick") ? control.id : control.value;
      if (value) address.searchParams.set(key, value);
      else address.searchParams.delete(key);
      history.replaceState(null, "", address);
    });
  }
})();
