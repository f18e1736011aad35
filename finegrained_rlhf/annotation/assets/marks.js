"use strict";
/* What may be marked where. Knows texts, spans and the taxonomy; knows no page. Offsets here are UTF-16 units, as in
   the browser; exports have characters (code points). */
const Marks = (() => {
  const characters = (text, unit) => Array.from(text.slice(0, unit)).length;
  const units = (text, character) => Array.from(text).slice(0, character).join("").length;

  const trimmed = (text, start, end) => {
    while (start < end && /\s/u.test(text[start])) start += 1;
    while (end > start && /\s/u.test(text[end - 1])) end -= 1;
    return start < end ? [start, end] : null;
  };

  /* Where words, the signs between them and white space begin and end, in any script; a word is never cut. */
  let segmented = { text: null, places: [] };
  const borders = (text) => {
    if (segmented.text !== text) {
      const parts = [...new Intl.Segmenter(undefined, { granularity: "word" }).segment(text)];
      segmented = { text, places: [...parts.map((part) => part.index), text.length] };
    }
    return segmented.places;
  };
  /* Where the cursor goes by words: to their ends on the way on, to their beginnings on the way back. */
  const words = (text, onward) => borders(text)
    .filter((place, i, all) => text.slice(...(onward ? [all[i - 1] ?? 0, place] : [place, all[i + 1]])).trim());
  /* The whole words that a selection touches, without white space around them; null where it touches none. */
  const wholeWords = (text, start, end) => {
    if (start >= end) return null;
    const places = borders(text);
    return trimmed(text, places.filter((place) => place <= start).pop(), places.find((place) => place >= end));
  };

  const rank = (taxonomy, type) => taxonomy.categories.findIndex((one) => one.types.some((kind) => kind.name === type));
  const typeNamed = (taxonomy, name) => taxonomy.categories.flatMap((one) => one.types).find((kind) => kind.name === name);

  /* What is left of a span outside others, trimmed. */
  const outside = (text, span, others) => {
    let parts = [[span.start, span.end]];
    for (const other of others) {
      parts = parts.flatMap(([a, b]) =>
        other.start >= b || other.end <= a ? [[a, b]] : [[a, Math.max(a, other.start)], [Math.min(b, other.end), b]],
      );
    }
    return parts.map(([a, b]) => trimmed(text, a, b)).filter(Boolean)
      .map(([a, b]) => ({ ...span, start: a, end: b, evidence: [...span.evidence] }));
  };

  /* Spans with a new one, or a refusal: {spans, added, message} or {message}. */
  const add = (text, spans, taxonomy, place, type) => {
    if (!place) return { message: "Select some words first." };
    const fresh = { start: place[0], end: place[1], type, evidence: [], note: "" };
    const touching = spans.filter((one) => one.start < fresh.end && one.end > fresh.start);
    const ours = rank(taxonomy, type);
    const other = touching.find((one) => one.type !== type && rank(taxonomy, one.type) === ours);
    if (other) return { message: `These words are marked as “${typeNamed(taxonomy, other.type).label}” already.` };
    const same = touching.filter((one) => one.type === type);
    const joined = same.reduce((all, one) => ({
      ...all, start: Math.min(all.start, one.start), end: Math.max(all.end, one.end),
      evidence: [...all.evidence, ...one.evidence.filter((e) => !all.evidence.some((f) => f[0] === e[0] && f[1] === e[1]))],
      note: [all.note, one.note].filter(Boolean).join("; "),
    }), fresh);
    const rest = spans.filter((one) => !same.includes(one));
    const earlier = rest.filter((one) => rank(taxonomy, one.type) < ours);
    const parts = outside(text, joined, earlier);
    if (!parts.length) return { message: "An error of a category that comes first covers these words." };
    let cut = false;
    const kept = rest.flatMap((one) => {
      if (rank(taxonomy, one.type) <= ours || !parts.some((part) => part.start < one.end && part.end > one.start)) return [one];
      cut = true;
      return outside(text, one, parts);
    });
    const changed = parts.length > 1 || parts[0].start !== joined.start || parts[0].end !== joined.end;
    const message = cut ? "A mark of a later category was cut: this one comes first."
      : changed ? "The mark was cut where an error of an earlier category stands." : "";
    const all = [...kept, ...parts].sort((a, b) => a.start - b.start);
    return { spans: all, added: parts[0], message };
  };

  /* What keeps a task from being done. */
  const lacks = (task, state, taxonomy) => {
    const found = [];
    if (task.marked !== null && taxonomy.categories.length && !state.spans.length && !state.noError) {
      found.push("Mark an error, or tick that there is none.");
    }
    if (task.marked !== null && taxonomy.missing.length && task.passages.length
        && !Object.keys(state.missing).length && !state.nothingMissing) {
      found.push("Mark what is missing, or tick that nothing is.");
    }
    if (taxonomy.preferences && task.answers.length > 1) {
      const byPairs = taxonomy.comparison === "pairs";
      if ((byPairs ? state.pairs : state.places).some((one) => one === null)) {
        found.push(byPairs ? "Judge every pair of answers." : "Give every answer a place.");
      }
    }
    return found;
  };

  /* The pairs of n answers, as [earlier, later] shown places. */
  const pairs = (n) => Array.from({ length: n }, (_, i) => i).flatMap((i) => Array.from({ length: n - i - 1 }, (_, k) => [i, i + k + 1]));

  const ranking = (places) => [...new Set(places)].sort((a, b) => a - b)
    .map((place) => places.flatMap((one, i) => (one === place ? [i] : [])));

  /* The state of a task before anybody did anything. */
  const blank = (task) => ({
    spans: [], noError: false, missing: {}, nothingMissing: false,
    correction: task.marked === null ? "" : task.answers[task.marked],
    places: task.answers.map(() => null), pairs: pairs(task.answers.length).map(() => null), accepted: [], refused: [], edited: [],
    status: "new", seconds: 0,
  });

  return { blank, characters, units, trimmed, borders, words, wholeWords, rank, typeNamed, add, lacks, pairs, ranking };
})();
