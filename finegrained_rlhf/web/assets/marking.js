"use strict";
/* Brings what is kept in this browser to the server: every change is an event with an id of its own, which waits in the
   browser's storage until the server says that it is on its disk, and is sent again until then. What another device did
   meanwhile is joined, mark by mark. Stands between Kept and Store; knows the server and no page. */
const Sync = ((payload) => {
  const { server } = payload, SLOWEST = 8000, BATCH = 50;
  const prefix = JSON.stringify(["finegrained-annotation/2", payload.project_id, payload.annotator, "event"]).slice(0, -1);
  const texts = ["noError", "nothingMissing", "correction", "status"];
  const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  const memory = new Map(), open = new Set();  // events that the storage had no room for; events of this tab that were not sent
  let storage = null, count = 0, busy = false, pause = 0, timer = null, csrf = server.csrf, said = "Saved";
  try { storage = window.localStorage; } catch (error) { storage = null; }

  const put = (key, event) => {
    try { storage.setItem(key, JSON.stringify(event)); memory.delete(key); } catch (error) { memory.set(key, event); }
  };
  const waiting = () => [
    ...Object.keys(storage || {}).filter((key) => key.startsWith(prefix)).map((key) => [key, JSON.parse(storage.getItem(key))]), ...memory,
  ].sort(([a], [b]) => (a < b ? -1 : 1));
  const drop = (key) => { memory.delete(key); if (storage) storage.removeItem(key); };

  /* The same as `merged` of the server: what was changed from `before` to `update`, done to `now`. */
  const joined = (now, before, update) => {
    const gone = Object.keys(before).filter((key) => !(key in update));
    const changed = Object.entries(update).filter(([key, value]) => !(key in before) || !same(before[key], value));
    return Object.fromEntries([...Object.entries(now).filter(([key]) => !gone.includes(key)), ...changed]);
  };
  const byPlace = (spans) => Object.fromEntries(spans.map((span) => [JSON.stringify([span.start, span.end, span.type]), span]));
  const byNumber = (numbers) => Object.fromEntries(numbers.map((n) => [n, n]));
  const field = (name, now, old, next) => {
    if (old === undefined || same(now, old) || texts.includes(name)) return next;
    if (name === "seconds") return Math.max(0, now + next - old);
    if (name === "missing") return joined(now, old, next);
    if (name === "spans") return Object.values(joined(byPlace(now), byPlace(old), byPlace(next))).sort((a, b) => a.start - b.start || a.end - b.end);
    if (name === "places" || name === "pairs") return now.map((value, i) => (next[i] === old[i] ? value : next[i]));
    return Object.values(joined(byNumber(now), byNumber(old), byNumber(next))).sort((a, b) => a - b);
  };
  const applied = (state, event) => Object.entries(event.update)
    .reduce((made, [name, next]) => ({ ...made, [name]: field(name, name in made ? made[name] : event.before[name], event.before[name], next) }), state);
  const expected = (task, state) => waiting().filter(([, event]) => event.item === task.item)
    .reduce((made, [, event]) => applied(made, event), { ...Marks.blank(task), ...state });

  /* The last state of each task that is kept or waits; what differs from it is the next event. */
  const known = payload.tasks.map((task) => expected(task, (server.kept[task.item] || {}).state));
  const timeless = (state) => JSON.stringify(Object.entries({ ...state, seconds: 0 }).sort());

  const note = (i, state) => {
    const { item } = payload.tasks[i];
    const names = Object.keys(state).filter((name) => !same(state[name], known[i][name]));
    if (!names.length) return;
    const pick = (of) => Object.fromEntries(names.map((name) => [name, of[name]]));
    const event = { item, before: pick(known[i]), update: pick(state) };
    const [key, last] = waiting().pop() || [];
    /* Nor does a change that begins elsewhere than the last one ended, in what another tab wrote: both texts are kept. */
    const goesOn = (name) => name in last.update && same(last.update[name], known[i][name]);
    /* Only a text that holds the last one takes its place: another tab may have set this one back meanwhile. */
    const longer = names.includes("correction") && last && state.correction.startsWith(last.update.correction);
    const follows = longer && last.item === item && open.has(key) && names.every(goesOn);
    known[i] = structuredClone(state);
    /* Keys that follow each other are one event, always of a new id: another tab may be sending the one before. */
    const id = `${Date.now().toString(36).padStart(9, "0")}-${String((count += 1)).padStart(6, "0")}-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
    put(`${prefix},"${id}"]`, { id, item, before: (follows ? last : event).before, update: { ...(follows ? last.update : {}), ...event.update } });
    open.add(`${prefix},"${id}"]`);
    if (follows) drop(key);
    say("Saving…");
    soon(0);
  };

  const say = (message) => {
    said = message;
    const box = document.getElementById("sent");
    if (box && box.textContent !== message) box.textContent = message;
  };
  const soon = (delay) => { clearTimeout(timer); timer = setTimeout(send, delay); };

  /* An answer that comes when another tab works is older than what that tab has kept meanwhile: it is for the next one. */
  const adopt = (tasks) => {
    if (Kept.elsewhere()) return;
    payload.tasks.forEach((task, i) => {
      if (!(task.item in tasks)) return;
      const now = expected(task, tasks[task.item].state);
      if (timeless(now) === timeless(known[i])) return;
      known[i] = structuredClone(now);
      Kept.replace(i, { state: now, past: (Kept.peek(i) || {}).past || [] });
      Store.refresh();
    });
  };

  const send = async () => {
    if (busy || Kept.elsewhere()) return;
    if (document.readyState !== "complete") { soon(50); return; }
    const batch = waiting().slice(0, BATCH);
    if (!batch.length) { say("Saved"); return; }
    batch.forEach(([key]) => open.delete(key));
    busy = true;
    try {
      const body = JSON.stringify({ annotator: payload.annotator, events: batch.map(([, event]) => event) });
      const answer = await fetch(server.url, { method: "POST", body, keepalive: body.length < 60000, signal: AbortSignal.timeout(20000),
        headers: { "content-type": "application/json", "x-csrf-token": csrf } });
      if (answer.ok) {
        const { tasks } = await answer.json();
        batch.forEach(([key]) => drop(key));
        adopt(tasks);
        pause = 0;
      } else if (answer.status === 401 || answer.status === 403) {
        const session = await (await fetch(server.token)).json();
        if (session.name === payload.annotator) csrf = session.csrf;
        else say("You are signed out. Sign in again in another tab: your work is kept here until then.");
        pause = Math.min(2 * pause + 500, SLOWEST);
      } else {
        say(`The server did not take this (${(await answer.json()).error}). It is kept here: save to a file.`);
        pause = SLOWEST;
      }
    } catch (error) {
      say("No connection: your work is kept in this browser, and sent when the server is there again.");
      pause = Math.min(2 * pause + 250, SLOWEST);
    }
    busy = false;
    if (waiting().length) soon(pause);
    else say("Saved");
  };

  /* Where nothing waits, the server's state is the newest; what this browser alone has, the server does not know yet. */
  if (!Kept.elsewhere()) {
    payload.tasks.forEach((task, i) => {
      const local = Kept.peek(i), kept = server.kept[task.item];
      if (!kept && local && local.state) note(i, { ...Marks.blank(task), ...local.state });
      else if (kept && timeless({ ...Marks.blank(task), ...(local || {}).state }) !== timeless(known[i])) {
        Kept.replace(i, { state: known[i], past: kept.past });
      }
    });
  }
  const { write, takeOver } = Kept;
  /* What the tab before did here is with the server, or waits for it: nothing of it is a change of this one. */
  Kept.takeOver = () => {
    takeOver();
    payload.tasks.forEach((task, i) => {
      const local = Kept.peek(i);
      if (local && local.state) known[i] = { ...Marks.blank(task), ...local.state };
    });
    soon(0);
  };
  Kept.write = (i, record) => { note(i, record.state); return write(i, record) || memory.size === 0; };
  window.addEventListener("online", () => soon(0));
  document.addEventListener("visibilitychange", () => soon(0));
  soon(0);
  setInterval(() => { if (!busy && waiting().length && pause === 0) send(); }, SLOWEST);
  return { home: server.home, waiting, get said() { return said; } };
})(JSON.parse(document.getElementById("tasks").textContent));
