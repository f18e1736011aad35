"use strict";
/* The state of every task, its history, and where it is kept: in this browser, by one tab at a time, and in files.
   Knows storage and the forms of export and import; knows no page. */
const Store = ((payload) => {
  const HEARTBEAT = 1000, STALE = 4000;
  const key = `annotate:${payload.project}:${payload.annotator}:${payload.guideline_version}`;
  const me = Array.from(crypto.getRandomValues(new Uint32Array(2)), (n) => n.toString(36)).join("");
  const listeners = [];
  let storage = null;
  try {
    storage = window.localStorage;
    storage.setItem(`${key}:test`, "1");
    storage.removeItem(`${key}:test`);
  } catch (error) {
    storage = null;
  }

  const blank = (task) => ({
    spans: [], noError: false, missing: {}, nothingMissing: false,
    correction: task.marked === null ? "" : task.answers[task.marked],
    places: task.answers.map(() => null), pairs: Marks.pairs(task.answers.length).map(() => null), accepted: [], refused: [],
    status: "new", seconds: 0,
  });
  let states = payload.tasks.map(blank);
  let histories = payload.tasks.map(() => ({ past: [], future: [] }));
  let current = 0, readOnly = false, saved = true;

  const owner = () => {
    try {
      return JSON.parse(storage.getItem(`${key}:owner`) || "null");
    } catch (error) {
      return null;
    }
  };
  const claim = () => storage.setItem(`${key}:owner`, JSON.stringify({ id: me, time: Date.now() }));
  const announce = () => listeners.forEach((listener) => listener());

  const load = () => {
    if (!storage) return;
    try {
      const kept = JSON.parse(storage.getItem(key) || "null");
      if (!kept) return;
      payload.tasks.forEach((task, i) => {
        const one = kept.tasks[task.item];
        if (one && one.hash === task.hash && JSON.stringify(one.order) === JSON.stringify(task.order)) {
          states[i] = { ...blank(task), ...one.state };
        }
      });
      current = Math.min(Math.max(kept.current || 0, 0), payload.tasks.length - 1);
    } catch (error) {
      /* what is kept is not ours: it stays where it is until something is saved */
    }
  };

  /* Keep everything, unless another tab works: its work is never overwritten. */
  const save = () => {
    if (!storage || readOnly) return;
    const holder = owner();
    if (holder && holder.id !== me && Date.now() - holder.time < STALE) {
      setReadOnly(true);
      return;
    }
    try {
      claim();
      const tasks = {};
      payload.tasks.forEach((task, i) => {
        tasks[task.item] = { hash: task.hash, order: task.order, state: states[i] };
      });
      storage.setItem(key, JSON.stringify({ tasks, current }));
      saved = true;
    } catch (error) {
      saved = false;
    }
  };

  const setReadOnly = (value) => {
    if (readOnly === value) return;
    readOnly = value;
    announce();
  };

  const takeOver = () => {
    if (!storage) return;
    claim();
    load();
    readOnly = false;
    announce();
  };

  const change = (update, redraw = true) => {
    if (readOnly) return;
    const history = histories[current];
    const before = JSON.stringify(states[current]);
    const after = { ...structuredClone(states[current]), ...update };
    if (after.status === "new" || (after.status !== "draft" && !("status" in update))) after.status = "draft";
    if (JSON.stringify(after) === before) return;
    history.past.push(before);
    if (history.past.length > 200) history.past.shift();
    history.future = [];
    states[current] = after;
    save();
    if (redraw) announce();
  };

  const travel = (from, to) => {
    const history = histories[current];
    if (readOnly || !history[from].length) return false;
    history[to].push(JSON.stringify(states[current]));
    const { seconds } = states[current];
    states[current] = { ...JSON.parse(history[from].pop()), seconds };
    save();
    announce();
    return true;
  };

  const go = (place) => {
    current = Math.min(Math.max(place, 0), payload.tasks.length - 1);
    save();
    announce();
  };

  const exported = () => ({
    format: "finegrained-annotation-export/1",
    project: payload.project,
    annotator: payload.annotator,
    guideline_version: payload.guideline_version,
    taxonomy: payload.taxonomy.name,
    tasks: payload.tasks.flatMap((task, i) => (states[i].status === "new" ? [] : [exportedTask(task, states[i])])),
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
      suggestions: { shown: task.suggestions.length, accepted: state.accepted.length, refused: state.refused.length },
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

  const replaceAll = (made) => {
    states = made;
    histories = payload.tasks.map(() => ({ past: [], future: [] }));
    save();
    announce();
  };

  load();
  if (storage) {
    const holder = owner();
    readOnly = Boolean(holder && holder.id !== me && Date.now() - holder.time < STALE);
    if (!readOnly) claim();
    setInterval(() => {
      if (readOnly) {
        const now = owner();
        if (!now || Date.now() - now.time >= STALE) {
          document.dispatchEvent(new CustomEvent("free"));
        }
        return;
      }
      const now = owner();
      if (now && now.id !== me && Date.now() - now.time < STALE) setReadOnly(true);
      else claim();
    }, HEARTBEAT);
    window.addEventListener("storage", (event) => {
      if (event.key === `${key}:owner`) {
        const now = owner();
        if (now && now.id !== me) setReadOnly(true);
      } else if (event.key === key && readOnly) {
        load();
        announce();
      }
    });
    window.addEventListener("pagehide", () => {
      const now = owner();
      if (now && now.id === me) {
        save();
        storage.removeItem(`${key}:owner`);
      }
    });
  }

  return {
    payload, change, go, takeOver, exported, imported, replaceAll,
    undo: () => travel("past", "future"), redo: () => travel("future", "past"),
    listen: (listener) => listeners.push(listener),
    tick: () => { if (!readOnly && document.visibilityState === "visible" && states[current].status !== "new") states[current].seconds += 1; },
    begin: () => { if (!readOnly && states[current].status === "new") states[current].status = "draft"; },
    get current() { return current; }, get task() { return payload.tasks[current]; }, get state() { return states[current]; },
    get states() { return states; }, get readOnly() { return readOnly; }, get kept() { return Boolean(storage) && saved; },
  };
})(JSON.parse(document.getElementById("tasks").textContent));
