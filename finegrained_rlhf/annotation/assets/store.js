"use strict";
/* The state of every task and its history, in this tab or as another one left it, and in files. Knows the forms of export
   and import; where work is kept is Kept's; knows no page. */
const Store = ((payload) => {
  const HEARTBEAT = 1000, STEPS = 100, BURST = 3000;
  const listeners = [];
  const announce = () => listeners.forEach((listener) => listener());

  const { blank } = Marks;
  /* A task's state, the steps that led to it and those that were taken back: each step is what it changed, as it was before. */
  const opened = (task, i) => {
    const kept = Kept.read(i) || {};
    return { state: { ...blank(task), ...kept.state }, past: kept.past || [], future: kept.future || [] };
  };
  let works = payload.tasks.map(opened);
  const last = payload.tasks.length - 1;
  const { current: kept = 0, how: shown = true } = Kept.page;
  let current = Math.min(Math.max(kept, 0), last), how = shown, readOnly = false, typing = null;
  const lost = new Set();  // places of tasks whose last change could not be kept
  let inFile = false;  // whether nothing was changed since all was saved to a file

  const setReadOnly = (value) => {
    if (readOnly === value) return;
    readOnly = value;
    announce();
  };
  /* Whether this tab may change something: never while another one works. */
  const mayWork = () => {
    if (!readOnly && Kept.elsewhere()) setReadOnly(true);
    return !readOnly;
  };

  const save = (i = current) => {
    if (!mayWork()) return;
    const before = lost.size;
    Kept.claim();
    [...new Set([...lost, i])].forEach((place) => {
      if (works[place].state.status === "new" && Kept.isMissing(place)) return;
      if (Kept.changed(place) && !Kept.isMissing(place)) {  // another tab's work, come meanwhile: one step back
        remember(works[place].past, opened(payload.tasks[place], place).state, works[place].state);
      }
      if (Kept.write(place, works[place])) lost.delete(place);
      else lost.add(place);
    });
    Kept.page = { current, how };
    if (before === 0 !== (lost.size === 0)) announce();
  };

  /* Take what another tab left. */
  const refresh = () => {
    const changed = payload.tasks.map((_, i) => i).filter((i) => Kept.changed(i) && !Kept.isMissing(i) && !lost.has(i));
    changed.forEach((i) => { works[i] = opened(payload.tasks[i], i); });
    return changed.length > 0;
  };
  const takeOver = () => {
    Kept.takeOver();
    refresh();
    readOnly = false;
    announce();
  };
  const beat = () => {
    if (!mayWork()) {
      if (!Kept.elsewhere() && document.visibilityState === "visible") takeOver();
    } else Kept.claim();
  };

  const remember = (past, state, next) => {
    const names = Object.keys(next).filter((name) => JSON.stringify(next[name]) !== JSON.stringify(state[name]));
    if (names.length) past.push(Object.fromEntries(names.map((name) => [name, state[name]])));
    if (past.length > STEPS) past.shift();
    return names.length > 0;
  };
  const apply = (i, update, follows = false) => {
    const { state, past } = works[i];
    const changes = remember(follows ? [] : past, state, update);
    if (!changes) return false;
    works[i] = { state: { ...state, ...update }, past, future: [] };
    inFile = false;
    return true;
  };

  /* Change the current task. What is typed names its box: it is kept at once, the page is not drawn anew, which would take
     the cursor away, and keys that follow each other closely are one step back. */
  const change = (update, box = null) => {
    if (!mayWork()) return;
    const follows = box !== null && typing && typing.box === box && Date.now() - typing.time < BURST;
    const status = "status" in update ? {} : { status: "draft" };
    if (!apply(current, { ...update, ...status }, follows)) return;
    typing = box === null ? null : { box, time: Date.now() };
    save();
    if (box === null) announce();
  };

  const travel = (from, to) => {
    if (!mayWork() || !works[current][from].length) return;
    const { state } = works[current], step = works[current][from].pop();
    works[current][to].push(Object.fromEntries(Object.keys(step).map((name) => [name, state[name]])));
    works[current].state = { ...state, ...step };
    inFile = false;
    typing = null;
    save();
    announce();
  };

  const go = (place) => {
    const left = current;
    current = Math.min(Math.max(place, 0), last);
    typing = null;
    save(left);
    announce();
  };

  const exported = () => ({
    format: "finegrained-annotation-export/1",
    project: payload.project,
    annotator: payload.annotator,
    guideline_version: payload.guideline_version,
    taxonomy: payload.taxonomy.name,
    tasks: payload.tasks.flatMap((task, i) => (works[i].state.status === "new" ? [] : [exportedTask(task, works[i].state)])),
  });

  const exportedTask = (task, state) => {
    const text = task.marked === null ? "" : task.answers[task.marked];
    const byPlace = new Map();
    for (const [place, type] of Object.entries(state.missing)) {
      const [passage, sentence] = place.split(",").map(Number);
      const group = `${type},${passage}`;
      if (!byPlace.has(group)) byPlace.set(group, { type, passage, sentences: [] });
      byPlace.get(group).sentences.push(sentence);
    }
    const compares = payload.taxonomy.preferences && task.answers.length > 1;
    const byPairs = payload.taxonomy.comparison === "pairs";
    return {
      item: task.item, hash: task.hash, order: task.order, marked: task.marked, status: state.status,
      seconds: Math.round(state.seconds * 10) / 10,
      spans: state.spans.map((span) => ({
        start: Marks.characters(text, span.start), end: Marks.characters(text, span.end),
        text: text.slice(span.start, span.end), type: span.type, evidence: span.evidence, note: span.note,
      })),
      no_error: state.noError,
      missing: [...byPlace.values()].map((gap) => ({ ...gap, sentences: gap.sentences.sort((a, b) => a - b) })),
      nothing_missing: state.nothingMissing,
      correction: payload.taxonomy.correction && task.marked !== null ? state.correction : null,
      ...(compares && byPairs ? { preferences: state.pairs } : {}),
      ranking: compares && !byPairs && state.places.every((place) => place !== null) ? Marks.ranking(state.places) : null,
      suggestions: { shown: task.suggestions.length, accepted: state.accepted.length + state.edited.length, refused: state.refused.length,
        ...(state.edited.length ? { edited: state.edited.length } : {}) },
    };
  };

  /* The states that a file holds, or an error that says why it is not taken. */
  const imported = (content) => {
    let file;
    try {
      file = JSON.parse(content);
    } catch (error) {
      throw new Error("This file is not JSON.");
    }
    const expected = { format: "finegrained-annotation-export/1", project: payload.project,
      annotator: payload.annotator, guideline_version: payload.guideline_version };
    for (const [name, value] of Object.entries(expected)) {
      if (!file || file[name] !== value) throw new Error(`Not an export of these tasks: ${name} is ${JSON.stringify(file && file[name])}, expected ${JSON.stringify(value)}.`);
    }
    const made = payload.tasks.map(blank);
    for (const row of file.tasks) {
      const i = payload.tasks.findIndex((task) => task.item === row.item);
      if (i < 0) throw new Error(`The file has a task ${JSON.stringify(row.item)} that is not here.`);
      const task = payload.tasks[i];
      if (row.hash !== task.hash || JSON.stringify(row.order) !== JSON.stringify(task.order)) {
        throw new Error(`Task ${JSON.stringify(row.item)} has another text here.`);
      }
      const text = task.marked === null ? "" : task.answers[task.marked];
      const places = task.answers.map(() => null);
      (row.ranking || []).forEach((group, place) => group.forEach((answer) => { places[answer] = place + 1; }));
      const missing = {};
      row.missing.forEach((gap) => gap.sentences.forEach((s) => { missing[`${gap.passage},${s}`] = gap.type; }));
      made[i] = {
        ...made[i],
        spans: row.spans.map((span) => ({ start: Marks.units(text, span.start), end: Marks.units(text, span.end),
          type: span.type, evidence: span.evidence, note: span.note })),
        noError: row.no_error, missing, nothingMissing: row.nothing_missing,
        correction: row.correction === null ? made[i].correction : row.correction,
        places, pairs: row.preferences || made[i].pairs, status: row.status, seconds: row.seconds || 0,
      };
    }
    return made;
  };

  /* What a file holds takes the place of what is here; every task can be undone. */
  const replaceAll = (made) => {
    made.forEach((state, i) => { if (apply(i, state)) save(i); });
    typing = null;
    announce();
  };

  const tick = () => {
    const { state } = works[current];
    if (readOnly) return;
    if (state.status === "new") state.status = "draft";
    if (document.visibilityState === "visible") state.seconds += 1;
  };
  let gone = false;  // the page is being left: what comes after must not claim the work again
  const leave = () => { if (!gone && !readOnly && !Kept.changed(current)) save(); };

  readOnly = Kept.elsewhere();
  if (!readOnly) {
    Kept.takeOver();
    works.forEach((work, i) => { if (work.state.status !== "new" && Kept.isMissing(i)) save(i); });
  }
  setInterval(() => { tick(); beat(); }, HEARTBEAT);
  window.addEventListener("storage", (event) => {
    if (event.key === null) works.forEach((_, i) => save(i));  // somebody emptied the storage: the work is still here
    else if (event.key === Kept.places.owner) beat();
    else if (Kept.isTask(event.key) && refresh()) announce();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "hidden") leave();
    else if (refresh()) announce();
  });
  window.addEventListener("pagehide", () => { leave(); gone = true; Kept.release(); });
  window.addEventListener("pageshow", (event) => { gone = false; if (event.persisted) { refresh(); beat(); announce(); } });
  window.addEventListener("beforeunload", (event) => { if (lost.size && !inFile) event.preventDefault(); });

  return {
    payload, sync: payload.server ? Sync : null, change, go, takeOver, exported, imported, replaceAll,
    undo: () => travel("past", "future"), redo: () => travel("future", "past"),
    listen: (listener) => listeners.push(listener), refresh: () => { if (refresh()) announce(); },
    savedToFile: () => { inFile = true; },
    get how() { return how; }, set how(value) { how = value; if (mayWork()) Kept.page = { current, how }; },
    get current() { return current; }, get task() { return payload.tasks[current]; }, get state() { return works[current].state; },
    get states() { return works.map((work) => work.state); }, get readOnly() { return readOnly; }, get kept() { return !lost.size; },
  };
})(JSON.parse(document.getElementById("tasks").textContent));
