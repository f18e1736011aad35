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
  const picked = () => Marks.wholeWords(textOf(), Math.min(ui.anchor, ui.caret), Math.max(ui.anchor, ui.caret));

  const waits = (state, i) => ![...state.accepted, ...state.refused, ...state.edited].includes(i);

  /* The answer in pieces, cut where a mark or a suggestion begins or ends. */
  const pieces = (text, state, task) => {
    const open = task.suggestions.map((one, i) => ({ ...one, i, start: Marks.units(text, one.start), end: Marks.units(text, one.end) }))
      .filter((one) => waits(state, one.i));
    const cuts = [0, text.length, ...[...state.spans, ...open].flatMap((s) => [s.start, s.end])];
    const places = [...new Set(cuts)].filter((cut) => cut >= 0 && cut <= text.length).sort((a, b) => a - b);
    return places.slice(0, -1).map((start, n) => {
      const end = places[n + 1];
      const span = state.spans.find((s) => s.start <= start && s.end >= end);
      const hint = open.find((s) => s.start <= start && s.end >= end);
      const kind = span && Marks.typeNamed(taxonomy, span.type);
      const colour = kind ? kind.colour : hint ? (Marks.typeNamed(taxonomy, hint.type) || {}).colour : null;
      return h("span", { class: span ? "marked" : hint ? "hint" : null, title: kind ? kind.label : null,
        style: colour ? { "--mark": colour } : {} }, text.slice(start, end));
    });
  };

  /* Show the words that a type's key would mark, and where the cursor of the keyboard stands. Neither touches the answer's
     elements, so that the browser's own selection and its handles stay as they are. */
  const paint = () => {
    const box = document.getElementById("answer"), place = picked();
    if (window.Highlight) {
      if (box && place) CSS.highlights.set("picked", new Highlight(Picked.range(...place)));
      else CSS.highlights.delete("picked");
    }
    if (!box) return;
    const caret = Picked.range(ui.caret, ui.caret).getClientRects()[0], frame = box.getBoundingClientRect();
    const mark = box.querySelector(".caret") || box.appendChild(h("i", { class: "caret" }));
    mark.hidden = !caret;
    if (!caret) return;
    mark.style.left = `${caret.left - frame.left - box.clientLeft + box.scrollLeft}px`;
    mark.style.top = `${caret.top - frame.top - box.clientTop + box.scrollTop}px`;
    mark.style.height = `${caret.height}px`;
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
        h("label", {}, kind.needs_quote ? "Quote what is repeated " : "Note ", h("input", { id: `note-${i}`, value: span.note, dir: "auto", on: { input: (event) => Actions.note(i, event.target.value) } })),
        h("button", { type: "button", class: "quiet", on: { click: () => Actions.remove(i) } }, "Remove")));
  };

  const suggestion = (one, i) => {
    const kind = Marks.typeNamed(taxonomy, one.type) || { label: one.type, colour: "#555555" };
    const state = Store.state;
    if (!waits(state, i)) return null;
    const text = textOf();
    return h("li", { style: { "--mark": kind.colour } }, "Suggested: ", h("b", {}, kind.label), " ",
      h("q", { dir: "auto" }, text.slice(Marks.units(text, one.start), Marks.units(text, one.end))),
      h("div", { class: "row" }, h("button", { type: "button", on: { click: () => Actions.suggested(i, true) } }, "Accept"),
        h("button", { type: "button", on: { click: () => Actions.edit(i) } }, "Change"),
        h("button", { type: "button", class: "quiet", on: { click: () => Actions.suggested(i, false) } }, "Refuse")));
  };

  const tick = (name, label, checked) => h("label", { class: "tick" },
    h("input", { type: "checkbox", id: name, checked, on: { change: (event) => Actions.tick(name, event.target.checked) } }), " ", label);

  /* Which of the answers is marked: they have their numbers where all are shown. */
  const which = (task) => {
    if (task.answers.length < 2 || !taxonomy.preferences) return null;
    const first = task.order[task.marked] === 0 ? ", the first that was sampled" : "";
    return h("p", { class: "soft which" }, `You mark one of the ${task.answers.length} answers${first}. All of them stand below, where you `
      + `${taxonomy.comparison === "pairs" ? "compare" : "rank"} them; there it is answer ${task.marked + 1}.`);
  };

  const choosing = (text, state) => {
    if (!ui.mode) return null;
    const what = ui.mode.kind === "edit" ? "Select other words, or leave these, and press the type that is right." : ui.mode.kind === "missing" ? `“${taxonomy.missing.find((one) => one.name === ui.mode.type).label}”: choose the sentences that the answer should have used.`
      : `Evidence for “${text.slice(state.spans[ui.mode.span].start, state.spans[ui.mode.span].end)}”: choose the sentences that show it.`;
    return h("div", { class: "row choice" }, h("span", { dir: "auto" }, what),
      h("button", { type: "button", id: "finish", on: { click: Actions.finish } }, "Chosen"));
  };

  const marking = (task, state) => {
    const text = textOf();
    return h("section", { class: "marking", "aria-label": "Answer" },
      h("h2", {}, taxonomy.categories.length ? "Mark the errors of this answer" : "This answer"), which(task),
      h("div", { class: `pinned${ui.mode ? " choosing" : ""}` }, choosing(text, state),
        h("div", { id: "answer", class: "answer", tabindex: "0", dir: "auto", role: "textbox", "aria-multiline": "true", "aria-readonly": "true",
          "aria-label": "Answer: arrows move, Shift selects, a type's key marks", on: { keydown: Actions.caret } }, ...pieces(text, state, task))),
      taxonomy.categories.length ? h("div", { class: "types", role: "toolbar", "aria-label": "Types of error", on: { mousedown: (event) => event.preventDefault() } },
        ...taxonomy.categories.map((category) => h("div", { class: "row" }, h("small", {}, category.title),
          ...category.types.map((kind) => typeButton(kind, false, () => Actions.mark(kind.name)))))) : null,
      h("ul", { class: "marks" }, ...task.suggestions.map(suggestion), ...state.spans.map((span, i) => mark(span, i, text))),
      taxonomy.categories.length ? tick("noError", "No error, after careful checking", state.noError) : null,
      taxonomy.missing.length && task.passages.length ? h("div", { class: "missing" }, h("h3", {}, "Missing from the answer"),
        h("div", { class: "row", role: "toolbar", "aria-label": "Types of missing information" },
          ...taxonomy.missing.map((kind) => typeButton(kind, ui.mode && ui.mode.kind === "missing" && ui.mode.type === kind.name, () => Actions.missing(kind.name)))),
        tick("nothingMissing", "Nothing is missing", state.nothingMissing)) : null);
  };

  const correcting = (state) => h("section", { class: "correcting", "aria-label": "Correction" },
    h("h2", {}, h("label", { for: "correction" }, "Correct this answer, with as few changes as you can")),
    h("textarea", { id: "correction", dir: "auto", rows: "4", on: { input: (event) => Actions.correction(event.target.value) } }, state.correction));

  const numbered = (task, i) => (i === task.marked ? `Answer ${i + 1}, marked above` : `Answer ${i + 1}`);
  const places = (name, values, chosen, act) => h("div", { class: "places" }, ...values.map(([value, label]) => h("label", { class: "place" },
    h("input", { type: "radio", name, value: String(value), checked: chosen === value, on: { change: () => act(value) } }), h("span", {}, label))));

  const ranking = (task, state) => h("section", { class: "ranking", "aria-label": "Ranking" },
    h("h2", {}, "Rank the answers"), h("p", { class: "soft" }, "1 is best; answers that are equally good share a place."),
    ...task.answers.map((answer, i) => h("fieldset", {}, h("legend", {}, numbered(task, i)), h("p", { class: "text", dir: "auto" }, answer),
      places(`place-${i}`, task.answers.map((_, n) => [n + 1, String(n + 1)]), state.places[i], (value) => Actions.place(i, value)))));

  const comparisons = (task, state) => h("section", { class: "ranking", "aria-label": "Pairs" },
    h("h2", {}, "Compare the answers"),
    ...task.answers.map((answer, i) => h("div", {}, h("h3", {}, numbered(task, i)), h("p", { class: "text", dir: "auto" }, answer))),
    ...Marks.pairs(task.answers.length).map(([a, b], n) => h("fieldset", {}, h("legend", {}, `Answer ${a + 1} or answer ${b + 1}?`),
      places(`pair-${n}`, [[1, `${a + 1} is better`], [0, "Equally good"], [2, `${b + 1} is better`]], state.pairs[n], (value) => Actions.pair(n, value)))));

  const how = (task) => (task.marked === null || !taxonomy.categories.length ? null
    : h("details", { class: "how", open: Store.how },
      h("summary", { on: { click: (event) => { Store.how = !event.target.parentElement.open; } } }, "How to mark"),
      h("ol", {},
        h("li", {}, "Select the words that are wrong: drag over them with the mouse, hold a finger on them, or use Shift and the arrows. Words are taken whole."),
        h("li", {}, "Press the button of the type of error, or its key. Where two kinds of error fall on the same words, take the one that stands first."),
        task.passages.length ? h("li", {}, "Press “Evidence” of a mark and choose sentences of the passages, where the type needs them.") : null)));

  const guidelines = () => h("details", { class: "guide" }, h("summary", {}, "What the types mean, and keys"),
    h("dl", {}, ...[...taxonomy.categories.flatMap((one) => one.types), ...taxonomy.missing]
      .flatMap((kind) => [h("dt", {}, h("kbd", {}, kind.key), " ", kind.label), h("dd", {}, kind.description)])),
    h("p", {}, "In the answer: arrows move, with Ctrl from word to word, with Shift they select; a type's key marks the selection; Delete removes the mark at the cursor. ",
      "Anywhere: Ctrl+Z undoes, Ctrl+Shift+Z does it again; Alt+→ and Alt+← go to the next and the last task; Ctrl+Enter finishes it. Sentences of the passages: Tab, then Enter; Escape when they are chosen."));

  const bar = () => {
    const done = Store.states.filter((state) => state.status === "done").length;
    const off = Store.readOnly;
    return h("header", {},
      h("div", { class: "row" }, h("b", {}, data(document.title)),
        h("span", { id: "progress" }, `${done} of ${Store.states.length} done`),
        Store.sync ? h("span", { id: "sent", class: "soft", role: "status" }, Store.sync.said) : null,
        Store.sync ? h("a", { href: Store.sync.home }, "All projects") : null,
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
      Store.kept || off ? null : h("p", { class: "warning", id: "unkept" }, "This browser has no room for your last changes: save to a file before you close the page."),
      ui.pending ? h("p", { class: "warning", id: "replace" }, "Replace everything that is marked here by what is in the file? ",
        h("button", { type: "button", id: "replace-yes", on: { click: Actions.replace } }, "Replace"), " ",
        h("button", { type: "button", id: "replace-no", on: { click: Actions.keep } }, "Keep what is here")) : null,
      h("p", { id: "said", role: "status", "aria-live": "polite" }, ui.message));
  };

  /* What the browser knows of the elements that a new drawing replaces: focus, cursors, how far boxes are scrolled. */
  const held = () => {
    const focused = document.activeElement;
    const again = focused && (focused.id ? `#${focused.id}` : focused.dataset && focused.dataset.place ? `[data-place="${focused.dataset.place}"]`
      : focused.name && focused.type === "radio" ? `input[name="${focused.name}"][value="${focused.value}"]` : null);
    const typed = focused && /^(INPUT|TEXTAREA)$/.test(focused.tagName) && !/^(checkbox|radio|file)$/.test(focused.type);
    const cursor = typed ? [focused.selectionStart, focused.selectionEnd] : null;
    const scrolled = [".passages", ".answer"].map((name) => [name, (document.querySelector(name) || {}).scrollTop || 0]);
    return () => {
      const target = again && document.querySelector(again);
      scrolled.forEach(([name, top]) => { if (document.querySelector(name)) document.querySelector(name).scrollTop = top; });
      if (target) target.focus({ preventScroll: true });
      if (target && cursor) target.setSelectionRange(...cursor);
      if (ui.anchor !== ui.caret && !typed && document.getElementById("answer")) Picked.set(ui.anchor, ui.caret);
    };
  };

  const draw = () => {
    const { task, state } = Store, restore = held();
    const body = h("main", { class: Store.readOnly ? "locked" : null },
      h("h1", { dir: "auto" }, task.question), how(task), guidelines(),
      task.reference ? h("details", {}, h("summary", {}, "A human reference answer"), h("p", { class: "text", dir: "auto" }, task.reference)) : null,
      h("div", { class: task.passages.length ? "columns" : null },
        task.marked === null ? null : marking(task, state),
        task.passages.length ? passages(task, state) : null,
        task.marked === null || !taxonomy.correction ? null : correcting(state),
        taxonomy.preferences && task.answers.length > 1 ? (taxonomy.comparison === "pairs" ? comparisons : ranking)(task, state) : null),
      h("footer", { class: "row" },
        h("button", { type: "button", id: "done", class: "primary", on: { click: Actions.done } }, "Done, next"),
        h("button", { type: "button", id: "skip", class: "quiet", on: { click: Actions.skip } }, "Skip this task")));
    if (Store.readOnly) body.querySelectorAll("button, input, textarea").forEach((one) => { one.disabled = true; });
    const header = bar();
    document.getElementById("app").replaceChildren(header, body);
    document.documentElement.style.setProperty("--bar", `${header.offsetHeight}px`);
    restore();
    paint();
  };

  /* Where sentences are to be chosen: bring the mark into the answer's box, and the passages into sight where they are not. */
  const showChoice = () => {
    const answer = document.getElementById("answer"), box = document.querySelector(".passages");
    if (ui.mode.kind === "evidence") {
      const { start } = Store.state.spans[ui.mode.span], at = Picked.range(start, start).getClientRects()[0];
      if (at) answer.scrollTop += at.top - answer.getBoundingClientRect().top - at.height;
    }
    if (box && box.getBoundingClientRect().top > window.innerHeight * 0.7) box.scrollIntoView();
  };

  return { ui, draw, paint, picked, say, textOf, showChoice };
})();
