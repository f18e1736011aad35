"use strict";
/* Where work is kept: one record a task in this browser's storage, written by one tab at a time. All pages that are opened
   from the disk share one storage: keys that are not this page's own are never written or removed. Knows keys, records and
   the lease of the tab that works; knows no states. */
const Kept = ((payload) => {
  const STALE = 4000;
  const named = (...parts) => JSON.stringify(
    ["finegrained-annotation/2", payload.project_id, payload.annotator, payload.guideline_version, ...parts]);
  const places = { owner: named("owner"), page: named("page") };
  /* A task with another text, or shown in another order, has another key: its work stays where it is. */
  const keys = payload.tasks.map((task) => named("task", task.item, task.hash, task.order));
  const me = Array.from(crypto.getRandomValues(new Uint32Array(2)), (n) => n.toString(36)).join("");
  const seen = keys.map(() => null);
  let storage = null;
  try {
    storage = window.localStorage;
  } catch (error) {
    storage = null;
  }

  const get = (key) => (storage ? storage.getItem(key) : null);
  const put = (key, value) => {
    try {
      storage.setItem(key, value);
      return true;
    } catch (error) {
      return false;
    }
  };
  const parsed = (text) => {
    try {
      const value = JSON.parse(text || "null");
      return value && typeof value === "object" ? value : null;
    } catch (error) {
      return null;
    }
  };

  /* Until version 2 all tasks stood under one key, named by the project's name alone. They are read, and left there. */
  const earlier = () => parsed(get(`annotate:${payload.project}:${payload.annotator}:${payload.guideline_version}`)) || {};
  const earlierRecord = (task) => {
    const one = (earlier().tasks || {})[task.item];
    const same = one && one.hash === task.hash && JSON.stringify(one.order) === JSON.stringify(task.order);
    return same && one.state ? { state: one.state } : null;
  };

  /* The record of a task, or null; what cannot be read is put aside before anything takes its place. */
  const read = (i) => {
    seen[i] = get(keys[i]);
    const record = parsed(seen[i]);
    if (record && record.state) return record;
    if (seen[i] !== null) put(`${keys[i]} unreadable`, seen[i]);
    return earlierRecord(payload.tasks[i]);
  };
  const changed = (i) => get(keys[i]) !== seen[i];
  /* For what brings work to a server: the record as it stands here, and another one in its place, as another tab would. */
  const peek = (i) => parsed(get(keys[i]));
  const replace = (i, record) => put(keys[i], JSON.stringify(record));

  /* Whether a record is kept now: with its history or, where there is no room, without. */
  const write = (i, record) => [record, { state: record.state }].some((one) => {
    const text = JSON.stringify(one);
    if (!put(keys[i], text)) return false;
    seen[i] = text;
    return true;
  });

  /* Tabs see what others write a moment late, so the tab before may claim once more just after it was taken over from.
     Whoever takes over begins a new term; a claim of an earlier one counts for nothing. */
  let term = 0;
  const owner = () => parsed(get(places.owner));
  const elsewhere = () => {
    const holder = owner();
    return Boolean(holder && holder.id !== me && (holder.term || 0) >= term && Math.abs(Date.now() - holder.time) < STALE);
  };
  const claim = () => { if (storage) put(places.owner, JSON.stringify({ id: me, time: Date.now(), term })); };
  const takeOver = () => {
    term = Math.max(term, (owner() || {}).term || 0) + 1;
    claim();
  };
  const release = () => {
    const holder = owner();
    if (holder && holder.id === me) storage.removeItem(places.owner);
  };

  return {
    read, write, changed, peek, replace, elsewhere, claim, takeOver, release, places,
    isTask: (key) => keys.includes(key),
    isMissing: (i) => get(keys[i]) === null,
    get page() { return parsed(get(places.page)) || { current: earlier().current || 0 }; },
    set page(value) { if (storage) put(places.page, JSON.stringify(value)); },
  };
})(JSON.parse(document.getElementById("tasks").textContent));
