"use strict";
/* The page: draws the current task from its state. Everything that comes from data goes in as text. */
const View = (() => {
  const { taxonomy } = Store.payload;
  const h = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "on") Object.entries(value).forEach(([event, listener]) => element.addEventListener(event, listener));
      else if (name === "style") Object.entries(value).forEach(([property, set]) => element.style.setProperty(property, set));
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  };
  const data = (text) => h("bdi", {}, text);
  /* Of the page alone, not of the task: what is selected, which mark or type waits for sentences, what was said last. */
  const ui = { anchor: 0, caret: 0, mode: null, message: "", pending: null };
  const say = (message) => { ui.message = message; const box = document.getElementById("said"); if (box) box.textContent = message; };
  const textOf = () => (Store.task.marked === null ? "" : Store.task.answers[Store.task.marked]);
  const selection = () => [Math.min(ui.anchor, ui.caret), Math.max(ui.anchor, ui.caret)];

  const pieces = (text, state, task) => {
    const open = task.suggestions.map((one, i) => ({ ...one, i, start: Marks.units(text, one.start), end: Marks.units(text, one.end) }))
      .filter((one) => !state.accepted.includes(one.i) && !state.refused.includes(one.i));
    const [from, to] = selection();
    const cuts = [0, text.length, from, to, ...state.spans.flatMap((s) => [s.start, s.end]), ...open.flatMap((s) => [s.start, s.end])];
    const places = [...new Set(cuts)].filter((cut) => cut >= 0 && cut <= text.length).sort((a, b) => a - b);
    const found = [];
    places.forEach((start, n) => {
      if (start === ui.caret) found.push(h("i", { class: "caret" }));
      const end = places[n + 1];
      if (end === undefined) return;
      const span = state.spans.find((s) => s.start <= start && s.end >= end);
      const hint = open.find((s) => s.start <= start && s.end >= end);
      const kind = span && Marks.typeNamed(taxonomy, span.type);
      const named = [span && "marked", !span && hint && "hint", start >= from && end <= to && from < to && "selected"].filter(Boolean);
      const colour = kind ? kind.colour : hint ? (Marks.typeNamed(taxonomy, hint.type) || {}).colour : null;
      found.push(h("span", { class: named.join(" ") || null, title: kind ? kind.label : null, style: colour ? { "--mark": colour } : {} }, text.slice(start, end)));
    });
    return found;
  };

  const drawAnswer = () => {
    const box = document.getElementById("answer");
    if (box) box.replaceChildren(...pieces(textOf(), Store.state, Store.task));
  };

  const typeButton = (kind, pressed, act) => h("button", {
    type: "button", class: "type", "aria-pressed": pressed ? "true" : "false", title: kind.description,
    style: { "--mark": kind.colour }, "data-type": kind.name, on: { click: act },
  }, h("kbd", {}, kind.key), " ", kind.label);

  const sentence = (passage, number, text, state) => {
    const place = `${passage},${number}`;
    const missing = state.missing[place];
    const kind = missing && taxonomy.missing.find((one) => one.name === missing);
    const active = ui.mode && ui.mode.kind === "evidence" ? state.spans[ui.mode.span] : null;
    const shown = active && active.evidence.some((e) => e[0] === passage && e[1] === number);
    return h("button", {
      type: "button", class: `sentence${kind ? " marked" : ""}${shown ? " evidence" : ""}${number === 0 ? " title" : ""}`, dir: "auto",
      "data-place": place, "aria-pressed": kind || shown ? "true" : "false", title: kind ? kind.label : null,
      style: kind ? { "--mark": kind.colour } : {}, on: { click: () => Actions.sentence(passage, number) },
    }, h("sup", {}, String(number)), " ", text || "(no title)");
  };

  const passages = (task, state) => h("section", { class: "passages", "aria-label": "Passages" },
    h("h2", {}, "Passages"),
    ...task.passages.map((one, i) => h("div", { class: "passage" }, h("h3", {}, `Passage ${i + 1}`),
      ...one.map((text, number) => sentence(i + 1, number, text, state)))));

  const mark = (span, i, text) => {
    const kind = Marks.typeNamed(taxonomy, span.type);
    const waits = ui.mode && ui.mode.kind === "evidence" && ui.mode.span === i;
    return h("li", { style: { "--mark": kind.colour } },
      h("b", {}, kind.label), " ", h("q", { dir: "auto" }, text.slice(span.start, span.end)),
      h("div", { class: "row" },
        Store.task.passages.length ? h("button", { type: "button", "aria-pressed": waits ? "true" : "false", on: { click: () => Actions.evidence(i) } },
          `Evidence: ${span.evidence.map((e) => e.join(".")).join(", ") || (kind.needs_evidence ? "needed" : "none")}`) : null,
        h("label", {}, kind.needs_quote ? "Quote what is repeated " : "Note ", h("input", { value: span.note, dir: "auto", on: { change: (event) => Actions.note(i, event.target.value) } })),
        h("button", { type: "button", class: "quiet", on: { click: () => Actions.remove(i) } }, "Remove")));
  };

  const suggestion = (one, i) => {
    const kind = Marks.typeNamed(taxonomy, one.type) || { label: one.type, colour: "#555555" };
    const state = Store.state;
    if (state.accepted.includes(i) || state.refused.includes(i)) return null;
    const text = textOf();
    return h("li", { style: { "--mark": kind.colour } }, "Suggested: ", h("b", {}, kind.label), " ",
      h("q", { dir: "auto" }, text.slice(Marks.units(text, one.start), Marks.units(text, one.end))),
      h("div", { class: "row" }, h("button", { type: "button", on: { click: () => Actions.suggested(i, true) } }, "Accept"),
        h("button", { type: "button", class: "quiet", on: { click: () => Actions.suggested(i, false) } }, "Refuse")));
  };

  const tick = (name, label, checked) => h("label", { class: "tick" },
    h("input", { type: "checkbox", id: name, checked, on: { change: (event) => Actions.tick(name, event.target.checked) } }), " ", label);

  const marking = (task, state) => {
    const text = textOf();
    return h("section", { class: "marking", "aria-label": "Answer" },
      h("h2", {}, task.answers.length > 1 ? `Answer ${task.marked + 1}: mark its errors` : "Answer"),
      taxonomy.categories.length ? h("div", { class: "types", role: "toolbar", "aria-label": "Types of error" },
        ...taxonomy.categories.map((category) => h("div", { class: "row" }, h("small", {}, category.title),
          ...category.types.map((kind) => typeButton(kind, false, () => Actions.mark(kind.name)))))) : null,
      h("div", { id: "answer", class: "answer", tabindex: "0", dir: "auto", role: "textbox", "aria-multiline": "true", "aria-readonly": "true",
        "aria-label": "Answer: arrows move, Shift selects, a type's key marks", on: { mouseup: Actions.mouse, touchend: Actions.mouse, keydown: Actions.caret } },
        ...pieces(text, state, task)),
      h("ul", { class: "marks" }, ...task.suggestions.map(suggestion), ...state.spans.map((span, i) => mark(span, i, text))),
      taxonomy.categories.length ? tick("noError", "No error, after careful checking", state.noError) : null,
      taxonomy.missing.length && task.passages.length ? h("div", { class: "missing" }, h("h3", {}, "Missing from the answer"),
        h("div", { class: "row", role: "toolbar", "aria-label": "Types of missing information" },
          ...taxonomy.missing.map((kind) => typeButton(kind, ui.mode && ui.mode.kind === "missing" && ui.mode.type === kind.name, () => Actions.missing(kind.name)))),
        tick("nothingMissing", "Nothing is missing", state.nothingMissing)) : null,
      taxonomy.correction ? h("div", {}, h("h3", {}, h("label", { for: "correction" }, "Corrected answer, with as few changes as you can")),
        h("textarea", { id: "correction", dir: "auto", rows: "4", on: { change: (event) => Actions.correction(event.target.value) } }, state.correction)) : null);
  };

  const ranking = (task, state) => h("section", { class: "ranking", "aria-label": "Ranking" },
    h("h2", {}, "Rank the answers"), h("p", { class: "soft" }, "1 is best; answers that are equally good share a place."),
    ...task.answers.map((answer, i) => h("fieldset", {}, h("legend", {}, `Answer ${i + 1}`),
      i === task.marked ? h("p", { class: "soft" }, "The answer above.") : h("p", { class: "text", dir: "auto" }, answer),
      h("div", { class: "places" }, ...task.answers.map((_, n) => h("label", { class: "place" },
        h("input", { type: "radio", name: `place-${i}`, value: String(n + 1), checked: state.places[i] === n + 1, on: { change: () => Actions.place(i, n + 1) } }), h("span", {}, String(n + 1))))))));

  const comparisons = (task, state) => h("section", { class: "ranking", "aria-label": "Pairs" },
    h("h2", {}, "Compare the answers"),
    ...task.answers.map((answer, i) => h("div", {}, h("h3", {}, `Answer ${i + 1}`),
      i === task.marked ? h("p", { class: "soft" }, "The answer above.") : h("p", { class: "text", dir: "auto" }, answer))),
    ...Marks.pairs(task.answers.length).map(([a, b], n) => h("fieldset", {}, h("legend", {}, `Answer ${a + 1} or answer ${b + 1}?`),
      h("div", { class: "places" }, ...[[1, `${a + 1} is better`], [0, "Equally good"], [2, `${b + 1} is better`]].map(([value, label]) => h("label", { class: "place" },
        h("input", { type: "radio", name: `pair-${n}`, value: String(value), checked: state.pairs[n] === value, on: { change: () => Actions.pair(n, value) } }), h("span", {}, label)))))));

  const guidelines = () => h("details", { class: "guide" }, h("summary", {}, "What the types mean, and keys"),
    h("p", {}, "Marks do not overlap; where two kinds of error fall on the same words, mark the one that stands first."),
    h("dl", {}, ...[...taxonomy.categories.flatMap((one) => one.types), ...taxonomy.missing]
      .flatMap((kind) => [h("dt", {}, h("kbd", {}, kind.key), " ", kind.label), h("dd", {}, kind.description)])),
    h("p", {}, "In the answer: arrows move, with Ctrl by words, with Shift they select; a type's key marks the selection; Delete removes the mark at the cursor. ",
      "Anywhere: Ctrl+Z undoes, Ctrl+Shift+Z does it again; Alt+→ and Alt+← go to the next and the last task; Ctrl+Enter finishes it. Sentences of the passages: Tab, then Enter."));

  const bar = () => {
    const done = Store.states.filter((state) => state.status === "done").length;
    const off = Store.readOnly;
    return h("header", {},
      h("div", { class: "row" }, h("b", {}, data(Store.payload.project)), h("span", { class: "soft" }, data(Store.payload.annotator)),
        h("span", { id: "progress" }, `${done} of ${Store.states.length} done`),
        h("progress", { max: String(Store.states.length), value: String(done), "aria-label": "Done" })),
      h("nav", { class: "row", "aria-label": "Tasks" },
        h("button", { type: "button", id: "previous", on: { click: () => Actions.go(Store.current - 1) } }, "← Previous"),
        h("span", { id: "where" }, `Task ${Store.current + 1} of ${Store.states.length}: ${{ new: "new", draft: "begun", done: "done", skipped: "skipped" }[Store.state.status]}`),
        h("button", { type: "button", id: "next", on: { click: () => Actions.go(Store.current + 1) } }, "Next →"),
        h("button", { type: "button", id: "undone", on: { click: Actions.firstUndone } }, "First undone"),
        h("button", { type: "button", id: "undo", disabled: off, on: { click: () => Store.undo() } }, "Undo"),
        h("button", { type: "button", id: "redo", disabled: off, on: { click: () => Store.redo() } }, "Redo"),
        h("button", { type: "button", id: "export", on: { click: Actions.download } }, "Save to a file"),
        h("label", { class: "button" }, "Open a file", h("input", { type: "file", id: "import", accept: ".json,application/json", disabled: off, on: { change: Actions.open } }))),
      off ? h("p", { class: "warning", id: "locked" }, "These tasks are open in another tab: here you can only read. ",
        h("button", { type: "button", id: "take-over", on: { click: () => Store.takeOver() } }, "Work here instead")) : null,
      Store.kept || off ? null : h("p", { class: "warning" }, "This browser keeps nothing: save to a file before you close the page."),
      ui.pending ? h("p", { class: "warning", id: "replace" }, "Replace everything that is marked here by what is in the file? ",
        h("button", { type: "button", id: "replace-yes", on: { click: Actions.replace } }, "Replace"), " ",
        h("button", { type: "button", id: "replace-no", on: { click: Actions.keep } }, "Keep what is here")) : null,
      h("p", { id: "said", role: "status", "aria-live": "polite" }, ui.message));
  };

  const draw = () => {
    const { task, state } = Store;
    const focused = document.activeElement;
    const again = focused && (focused.id ? `#${focused.id}` : focused.dataset && focused.dataset.place ? `[data-place="${focused.dataset.place}"]`
      : focused.name && focused.type === "radio" ? `input[name="${focused.name}"][value="${focused.value}"]` : null);
    const body = h("main", { class: Store.readOnly ? "locked" : null },
      h("h1", { dir: "auto" }, task.question), guidelines(),
      task.reference ? h("details", {}, h("summary", {}, "A human reference answer"), h("p", { class: "text", dir: "auto" }, task.reference)) : null,
      h("div", { class: "columns" },
        h("div", {}, task.marked === null ? null : marking(task, state), taxonomy.preferences && task.answers.length > 1 ? (taxonomy.comparison === "pairs" ? comparisons : ranking)(task, state) : null),
        task.passages.length ? passages(task, state) : null),
      h("footer", { class: "row" },
        h("button", { type: "button", id: "done", class: "primary", on: { click: Actions.done } }, "Done, next"),
        h("button", { type: "button", id: "skip", class: "quiet", on: { click: Actions.skip } }, "Skip this task")));
    if (Store.readOnly) body.querySelectorAll("button, input, textarea").forEach((one) => { one.disabled = true; });
    document.getElementById("app").replaceChildren(bar(), body);
    const target = again && document.querySelector(again);
    if (target) target.focus({ preventScroll: true });
  };

  return { ui, draw, drawAnswer, say, textOf, selection };
})();
