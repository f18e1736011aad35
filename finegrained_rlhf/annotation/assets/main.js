"use strict";
/* What people do: every action changes the state of the current task, and the page is drawn anew. */
const Actions = (() => {
  const { ui, say, textOf } = View;
  const { taxonomy } = Store.payload;
  const copy = (value) => structuredClone(value);

  const selected = () => {
    if (Picked.held) return;
    [ui.anchor, ui.caret] = Picked.read() || [ui.caret, ui.caret];
    View.paint();
  };
  const caretTo = (place, keep) => {
    Picked.set(keep ? ui.anchor : place, place);
    selected();
  };

  const caret = (event) => {
    const text = textOf(), byWords = event.ctrlKey || event.metaKey;
    const places = (onward) => (byWords ? Marks.words(text, onward) : Marks.borders(text));
    const moves = {
      ArrowRight: () => places(true).find((place) => place > ui.caret) ?? text.length,
      ArrowLeft: () => places(false).filter((place) => place < ui.caret).pop() ?? 0,
      Home: () => 0, End: () => text.length,
    };
    if (moves[event.key] && !event.altKey) {
      event.preventDefault();
      caretTo(moves[event.key](), event.shiftKey);
    } else if (event.key === "Delete" || event.key === "Backspace") {
      event.preventDefault();
      const [from, to] = [Math.min(ui.anchor, ui.caret), Math.max(ui.anchor, ui.caret)];
      const found = Store.state.spans.findIndex((span) => span.start <= from && span.end >= to);
      if (found >= 0) remove(found);
    } else if (event.key === "a" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      Picked.set(0, text.length);
      selected();
    }
  };

  const mark = (type) => {
    if (Store.readOnly) return;
    selected();
    const made = Marks.add(textOf(), Store.state.spans, taxonomy, View.picked(), type);
    if (!made.spans) { say(made.message); return; }
    ui.anchor = ui.caret = made.added.end;
    const kind = Marks.typeNamed(taxonomy, type);
    const place = made.spans.indexOf(made.added);
    const edited = ui.mode && ui.mode.kind === "edit" ? { edited: [...Store.state.edited, ui.mode.suggestion] } : {};
    ui.mode = kind.needs_evidence && Store.task.passages.length ? { kind: "evidence", span: place } : null;
    ui.message = made.message || (ui.mode ? "Now choose the sentences that show it." : "");
    Store.change({ spans: made.spans, noError: false, ...edited });
    if (ui.mode) View.showChoice();
  };

  const remove = (i) => {
    const spans = copy(Store.state.spans);
    spans.splice(i, 1);
    ui.mode = null;
    Store.change({ spans });
  };

  const note = (i, value) => {
    const spans = copy(Store.state.spans);
    spans[i].note = value;
    Store.change({ spans }, `note ${i}`);
  };

  const finish = () => {
    ui.mode = null;
    ui.message = "";
    View.draw();
    document.getElementById("answer").scrollIntoView({ block: "nearest" });
  };

  const evidence = (i) => {
    ui.mode = ui.mode && ui.mode.kind === "evidence" && ui.mode.span === i ? null : { kind: "evidence", span: i };
    ui.message = ui.mode ? "Choose the sentences that show it; choose one again to take it back." : "";
    View.draw();
    if (ui.mode) View.showChoice();
  };

  const missing = (type) => {
    ui.mode = ui.mode && ui.mode.kind === "missing" && ui.mode.type === type ? null : { kind: "missing", type };
    ui.message = ui.mode ? "Choose the sentences that the answer should have used." : "";
    View.draw();
    if (ui.mode) View.showChoice();
  };

  const sentence = (passage, number) => {
    if (Store.readOnly) return;
    if (!ui.mode || ui.mode.kind === "edit") { say("Choose a type of missing information first, or “Evidence” of a mark."); return; }
    if (ui.mode.kind === "missing") {
      const marked = copy(Store.state.missing), place = `${passage},${number}`;
      if (marked[place] === ui.mode.type) delete marked[place];
      else marked[place] = ui.mode.type;
      Store.change({ missing: marked, nothingMissing: Store.state.nothingMissing && !Object.keys(marked).length });
      return;
    }
    const spans = copy(Store.state.spans), span = spans[ui.mode.span];
    const found = span.evidence.findIndex((e) => e[0] === passage && e[1] === number);
    if (found >= 0) span.evidence.splice(found, 1);
    else span.evidence.push([passage, number]);
    Store.change({ spans });
  };

  /* A text box has line feeds alone; an answer that nobody changed keeps its own line ends. */
  const correction = (value) => {
    const plain = (text) => text.replace(/\r\n?/g, "\n");
    Store.change({ correction: plain(value) === plain(textOf()) ? textOf() : value }, "correction");
  };

  const tick = (name, checked) => {
    const held = name === "noError" ? Store.state.spans.length : Object.keys(Store.state.missing).length;
    if (checked && held) {
      ui.message = name === "noError" ? "There are marks: remove them first." : "Something is marked as missing: take it back first.";
      View.draw();
      return;
    }
    ui.message = "";
    Store.change({ [name]: checked });
  };

  const place = (answer, value) => {
    const places = copy(Store.state.places);
    places[answer] = value;
    Store.change({ places });
  };

  const pair = (i, value) => {
    const pairs = copy(Store.state.pairs);
    pairs[i] = value;
    Store.change({ pairs });
  };

  const suggested = (i, accept) => {
    const one = Store.task.suggestions[i], text = textOf();
    if (!accept) { Store.change({ refused: [...Store.state.refused, i] }); return; }
    const made = Marks.add(text, Store.state.spans, taxonomy, Marks.trimmed(text, Marks.units(text, one.start), Marks.units(text, one.end)), one.type);
    if (!made.spans) { say(made.message); return; }
    ui.message = made.message;
    Store.change({ spans: made.spans, noError: false, accepted: [...Store.state.accepted, i] });
  };

  /* What is suggested is selected; what is marked next, with other words or another type, takes its place. */
  const edit = (i) => {
    const one = Store.task.suggestions[i], text = textOf();
    ui.mode = { kind: "edit", suggestion: i };
    [ui.anchor, ui.caret] = [Marks.units(text, one.start), Marks.units(text, one.end)];
    View.draw();
    document.getElementById("answer").focus();
    Picked.set(ui.anchor, ui.caret);
  };

  const go = (to) => {
    ui.mode = null;
    ui.message = "";
    ui.anchor = ui.caret = 0;
    Store.go(to);
    window.scrollTo(0, 0);
  };

  const firstUndone = () => {
    const found = Store.states.findIndex((state) => state.status !== "done" && state.status !== "skipped");
    if (found < 0) say("Every task is done.");
    else go(found);
  };

  const done = () => {
    const lack = Marks.lacks(Store.task, Store.state, taxonomy);
    if (lack.length) { say(lack.join(" ")); return; }
    Store.change({ status: "done" });
    if (Store.current + 1 < Store.states.length) go(Store.current + 1);
    else { ui.message = "That was the last task. Save to a file."; View.draw(); }
  };

  const skip = () => { Store.change({ status: "skipped" }); go(Store.current + 1); };

  const download = () => {
    const made = JSON.stringify(Store.exported(), null, 1);
    const link = document.createElement("a");
    const name = `${Store.payload.project}-${Store.payload.annotator}`.replace(/[^\p{L}\p{N}._-]+/gu, "_");
    link.href = URL.createObjectURL(new Blob([made], { type: "application/json" }));
    link.download = `${name}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    Store.savedToFile();
    say(`Saved ${link.download}.`);
  };

  const open = async (event) => {
    const [file] = event.target.files;
    if (!file) return;
    try {
      ui.pending = Store.imported(await file.text());
      ui.message = "";
    } catch (error) {
      ui.pending = null;
      ui.message = error.message;
    }
    View.draw();
  };
  const replace = () => { const made = ui.pending; ui.pending = null; ui.message = "The file was read."; Store.replaceAll(made); };
  const keep = () => { ui.pending = null; View.draw(); };

  const keys = (event) => {
    const typing = /^(INPUT|TEXTAREA)$/.test(event.target.tagName) && !/^(checkbox|radio)$/.test(event.target.type);
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z" && !typing) {
      event.preventDefault();
      if (event.shiftKey) Store.redo();
      else Store.undo();
    } else if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
      event.preventDefault();
      done();
    } else if (event.altKey && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
      event.preventDefault();
      go(Store.current + (event.key === "ArrowRight" ? 1 : -1));
    } else if (event.key === "Escape" && ui.mode) {
      finish();
    } else if (!typing && !event.ctrlKey && !event.metaKey && !event.altKey && event.key.length === 1) {
      const kind = taxonomy.categories.flatMap((one) => one.types).find((one) => one.key === event.key);
      const gap = taxonomy.missing.find((one) => one.key === event.key);
      if (kind && Store.task.marked !== null) { event.preventDefault(); mark(kind.name); }
      else if (gap && Store.task.passages.length) { event.preventDefault(); missing(gap.name); }
    }
  };

  return { selected, finish, caret, mark, remove, note, evidence, missing, sentence, tick, place, pair, suggested, edit, go, firstUndone, done, skip,
    download, open, replace, keep, keys, correction };
})();

document.addEventListener("keydown", Actions.keys);
Picked.watch(Actions.selected);
Store.listen(View.draw);
View.draw();
