// Playground: asks for answers, ranks them by the weights of the sliders, says what a piece of one is worth, sends changes
// and marks. A total is the sum over components of weight times worth, so that moving a weight asks the server nothing.
(() => {
  "use strict";
  const $ = (id) => document.getElementById(id);
  const form = $("ask");
  if (!form) return;
  const DEBOUNCE = 400; // milliseconds without a key before a changed answer is scored
  const TIE = 1e-6; // as in best of n
  const WORDS = { question: "Question", messages: "Conversation: user: … and assistant: …, a turn a paragraph", text: "Text" };
  let examples = [];
  let types = [];
  let example = null; // the row that the form shows unchanged; null once a person has changed it
  let given = null; // what the server answered last
  let drawn = []; // the answers as the policies wrote them
  let asked = null; // the row and the reward that they belong to
  let weights = {};
  let chosen = null; // {answer, at}: the piece that was clicked
  let seed = 0;
  let turn = 0; // of requests; an earlier one's answer comes too late
  let timer = 0;

  const el = (tag, text, className) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const signed = (value, digits = 2) => {
    const shown = String(Number(Math.abs(value).toFixed(digits)));
    return shown === "0" ? "0" : (value < 0 ? "\u2212" : "+") + shown;
  };
  const plain = (value) => String(Number(value.toFixed(4))).replace("-", "\u2212");

  async function ask(path, body) {
    const options = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
    let answer;
    try {
      answer = await fetch(path, { ...options, headers: { ...(options || {}).headers, Accept: "application/json" } });
    } catch {
      throw new Error("The server does not answer; is it still running?");
    }
    const value = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(value.error || "The server answered " + answer.status + ".");
    return value;
  }
  const tell = (place, words, bad) => {
    place.textContent = words;
    place.classList.toggle("bad", Boolean(bad));
  };

  // The question ---------------------------------------------------------------------------------------------------

  const paragraphs = (text) => text.split(/\n\s*\n/).map((part) => part.trim()).filter(Boolean);
  function rowOf() {
    if (example) return example;
    const main = $("main").value.trim();
    if ($("kind").value === "text") return { text: main };
    if ($("kind").value === "messages") {
      const turns = main.split(/^(system|user|assistant):[ \t]*/m);
      if (turns.length < 3) return { messages: [{ role: "user", content: main }] };
      const messages = [];
      for (let i = 1; i + 1 < turns.length; i += 2) messages.push({ role: turns[i], content: turns[i + 1].trim() });
      return { messages };
    }
    const passages = paragraphs($("passages").value).map((part) => part.split("\n").map((line) => line.trim()).filter(Boolean));
    return { question: main, passages };
  }
  function showRow(row) {
    const kind = row.messages ? "messages" : row.question !== undefined ? "question" : "text";
    $("kind").value = kind;
    if (kind === "messages") $("main").value = row.messages.map((m) => m.role + ": " + m.content).join("\n\n");
    else $("main").value = kind === "question" ? row.question : row.text;
    $("passages").value = (row.passages || []).map((passage) => passage.join("\n")).join("\n\n");
    example = row;
    showKind();
  }
  function showKind() {
    $("words").textContent = WORDS[$("kind").value];
    $("context").hidden = $("kind").value !== "question";
    $("main").rows = $("kind").value === "question" ? 2 : 6;
    const count = paragraphs($("passages").value).length;
    $("context").querySelector("summary").textContent = "Passages (" + count + ")";
  }
  async function showRun() {
    const name = $("reward").value;
    let offered;
    try {
      offered = await ask("/playground/run?name=" + encodeURIComponent(name));
    } catch (error) {
      return tell($("status"), error.message, true);
    }
    if (name !== $("reward").value) return;
    ({ examples, types } = offered);
    $("longest").value = offered.longest;
    const titles = examples.map((row) => row.question ?? (row.messages ? row.messages.at(-1).content : row.text));
    $("example").replaceChildren(
      ...titles.map((title, i) => new Option(title.length > 90 ? title.slice(0, 88) + " …" : title, i)),
      new Option("a question of your own", "own"),
    );
    $("type").replaceChildren(...types.map((type) => new Option(type.label, type.name)));
    tell($("status"), "");
    if (examples.length) showRow(examples[0]);
    else $("example").value = "own";
  }
  $("reward").addEventListener("change", showRun);
  $("example").addEventListener("change", () => {
    const row = examples[$("example").value];
    if (row) return showRow(row);
    example = null;
    $("main").value = $("passages").value = "";
    $("main").focus();
  });
  for (const name of ["main", "passages", "kind"])
    $(name).addEventListener("input", () => {
      example = null;
      $("example").value = "own";
      showKind();
    });

  // Answers --------------------------------------------------------------------------------------------------------

  async function play() {
    const policies = [...form.querySelectorAll("[name=policy]:checked")].map((box) => box.value);
    if (!policies.length) return tell($("status"), "Choose a policy that answers.", true);
    const mine = ++turn;
    asked = { row: rowOf(), reward: $("reward").value };
    const body = { ...asked, policies, seed };
    for (const name of ["samples", "temperature", "longest"]) body[name] = Number($(name).value);
    $("answer").disabled = $("others").disabled = true;
    tell($("status"), "Answering …  The first time, models are loaded.");
    try {
      const value = await ask("/playground/answers", body);
      if (mine !== turn) return;
      tell($("status"), "");
      drawn = value.answers;
      chosen = null;
      const same = given && JSON.stringify(given.components) === JSON.stringify(value.components);
      given = value;
      if (!same) showSliders();
      const first = $("played").hidden;
      show(value);
      explain();
      if (first) $("played").scrollIntoView();
      $("others").hidden = false;
    } catch (error) {
      tell($("status"), error.message, true);
    } finally {
      $("answer").disabled = $("others").disabled = false;
    }
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    seed = 0;
    play();
  });
  $("others").addEventListener("click", () => {
    seed += 1;
    play();
  });

  /** What each component gives an answer before its weight; 0 behind a closed gate. */
  function worthOf(answer) {
    const worth = Object.fromEntries(given.components.map(({ name }) => [name, 0]));
    for (const s of answer.segments) if (!answer.closed.includes(s.component)) worth[s.component] += s.value;
    return worth;
  }
  const totalOf = (answer, by = weights) =>
    answer.unscored.length ? null : given.components.reduce((sum, { name }) => sum + by[name] * answer.worth[name], 0);
  function best(totals) {
    const highest = Math.max(...totals.filter((total) => total !== null));
    return totals.findIndex((total) => total !== null && total >= highest - TIE);
  }
  const known = () => given.answers.map((answer) => totalOf(answer)).filter((total) => total !== null);
  const mean = () => known().reduce((sum, total) => sum + total, 0) / Math.max(1, known().length);

  /** Put the answers of the server on the page. */
  function show(value) {
    const layer = [...$("answers").querySelectorAll(".pick")].findIndex((input) => input.checked);
    given = value;
    for (const answer of value.answers) answer.worth = worthOf(answer);
    $("played").hidden = false;
    $("answers").innerHTML = value.html; // escaped by the server
    const picks = $("answers").querySelectorAll(".pick");
    if (picks[layer]) picks[layer].checked = true;
    cells().forEach((cell, i) => {
      cell.dataset.answer = i;
      const answer = value.answers[i];
      const head = cell.querySelector("h4");
      const who = answer.policy === "" ? "yours" : answer.policy === "." ? "this run" : answer.policy;
      head.replaceChildren(el("span", "", "rank"), el("bdi", "answer " + (i + 1) + " of " + who), el("span", "", "total"));
      head.after(el("div", undefined, "shares"));
      let at = 0;
      for (const piece of cell.querySelectorAll(".text .w")) {
        piece.removeAttribute("title"); // says weights as configured
        piece.dataset.at = at;
        at += [...piece.textContent].length; // offsets count code points
        if (!piece.textContent.trim()) continue; // between two segments
        piece.tabIndex = 0;
        piece.setAttribute("role", "button");
      }
      const sum = cell.querySelector(".sums").lastElementChild;
      if (sum) sum.remove(); // the weighted total as configured
      const change = el("button", "Change");
      change.type = "button";
      change.addEventListener("click", () => choose(i, null, true));
      cell.querySelector(".sums").append(change);
    });
    rank();
  }
  const cells = () => [...$("answers").querySelectorAll(".cells > div")].sort((a, b) => a.dataset.answer - b.dataset.answer);

  /** Order the answers by the weights of the sliders. */
  function rank() {
    const totals = given.answers.map((answer) => totalOf(answer));
    const low = (total) => (total === null ? -Infinity : total);
    let order = totals.map((_, i) => i).sort((a, b) => low(totals[b]) - low(totals[a]) || a - b);
    const first = best(totals);
    if (first >= 0) order = [first, ...order.filter((i) => i !== first)];
    const parts = given.answers.map((answer) => given.components.map(({ name }) => weights[name] * answer.worth[name]));
    const reach = (sign) => Math.max(0, ...parts.map((row) => row.reduce((sum, x) => sum + Math.max(0, sign * x), 0)));
    const [left, right] = [reach(-1), reach(1)];
    const all = cells();
    order.forEach((i, place) => {
      const cell = all[i];
      cell.parentElement.append(cell);
      cell.classList.toggle("first", place === 0);
      cell.querySelector(".rank").textContent = place + 1 + ".";
      cell.querySelector(".total").textContent = totals[i] === null ? "no score" : signed(totals[i]);
      bar(cell.querySelector(".shares"), parts[i], left, left + right);
    });
    const words = () => "Answer " + (first + 1) + " wins: " + (given.answers[first].text || "(empty)");
    $("winner").textContent = first < 0 ? "No answer has a score." : words();
    hints();
    const changed = given.components.filter(({ name, weight }) => weights[name] !== weight && !/^(unfinished|overlong)$/.test(name));
    $("typed").textContent = changed.map(({ name }) => "reward.weights." + name + "=" + weights[name]).join(" ");
    if (chosen) explain();
  }
  function bar(place, parts, left, width) {
    const pieces = [];
    const piece = (k, share, kind) => {
      const made = el("i", undefined, "s" + (k % 8) + " " + kind);
      made.style.width = (100 * share) / (width || 1) + "%";
      made.title = given.components[k].name + " " + signed(parts[k]);
      pieces.push(made);
    };
    const minus = parts.reduce((sum, x) => sum + Math.max(0, -x), 0);
    const space = el("i");
    space.style.width = (100 * (left - minus)) / (width || 1) + "%";
    parts.forEach((x, k) => x < 0 && piece(k, -x, "minus"));
    parts.forEach((x, k) => x > 0 && piece(k, x, "plus"));
    const nought = el("i", undefined, "nought");
    nought.style.left = (100 * left) / (width || 1) + "%";
    place.replaceChildren(space, ...pieces, nought);
  }

  // Weights --------------------------------------------------------------------------------------------------------

  function showSliders() {
    weights = Object.fromEntries(given.components.map(({ name, weight }) => [name, weight]));
    $("sliders").replaceChildren(
      ...given.components.map(({ name, weight, model }, k) => {
        const place = el("div", undefined, "slider s" + (k % 8));
        const label = el("label");
        const input = el("input");
        input.id = "w-" + k;
        label.htmlFor = input.id;
        label.append(el("i", undefined, "swatch"), el("bdi", name), el("b", plain(weight)));
        label.title = model;
        const reach = Math.max(1, 2 * Math.abs(weight));
        const [low, high] = weight < 0 ? [-reach, 0] : [0, reach];
        Object.assign(input, { type: "range", min: low, max: high, step: "any", value: weight });
        input.addEventListener("input", () => {
          weights[name] = Number(Number(input.value).toFixed(2));
          label.querySelector("b").textContent = plain(weights[name]);
          rank();
        });
        place.append(label, input, el("p", "", "note"));
        return place;
      }),
    );
  }
  $("reset").addEventListener("click", () => {
    showSliders();
    rank();
  });
  /** Below each slider: how far to move it until another answer wins. */
  function hints() {
    const now = best(given.answers.map((answer) => totalOf(answer)));
    [...$("sliders").children].forEach((place, k) => {
      const name = given.components[k].name;
      const input = place.querySelector("input");
      const winner = (weight) => best(given.answers.map((answer) => totalOf(answer, { ...weights, [name]: weight })));
      const words = [];
      for (const [end, side] of [[Number(input.min), "less"], [Number(input.max), "more"]]) {
        const step = end > weights[name] ? 0.01 : -0.01;
        for (let i = 1; i <= Math.round(Math.abs(end - weights[name]) * 100); i += 1) {
          const weight = Number((weights[name] + i * step).toFixed(2));
          const wins = winner(weight);
          if (wins === now) continue;
          words.push(plain(weight) + " or " + side + ": answer " + (wins + 1) + " wins");
          break;
        }
      }
      place.querySelector(".note").textContent = words.join(" · ") || "No weight of it alone changes the winner.";
    });
  }

  // A piece --------------------------------------------------------------------------------------------------------

  function choose(answer, at, edit) {
    const another = !chosen || chosen.answer !== answer;
    chosen = { answer, at };
    if (another) {
      $("changed").value = given.answers[answer].text;
      $("moved").textContent = "";
    }
    tell($("marked"), "");
    explain();
    if (edit) $("changed").focus();
  }
  /** What every component says of the chosen piece, with the weights as they are now. */
  function explain() {
    $("detail").hidden = !chosen;
    for (const piece of $("answers").querySelectorAll(".w.at")) piece.classList.remove("at");
    if (!chosen) return;
    const answer = given.answers[chosen.answer];
    const letters = [...answer.text];
    const over = chosen.at === null ? [] : answer.segments.filter((s) => s.start <= chosen.at && chosen.at < s.end);
    over.sort((a, b) => a.end - a.start - (b.end - b.start));
    if (over.length)
      for (const piece of cells()[chosen.answer].querySelectorAll(".w"))
        piece.classList.toggle("at", over[0].start <= piece.dataset.at && piece.dataset.at < over[0].end);
    const n = known().length;
    const total = totalOf(answer);
    const list = el("ul");
    for (const s of over) {
      const k = given.components.findIndex((part) => part.name === s.component);
      const part = given.components[k];
      const shut = answer.closed.includes(s.component);
      const weighted = shut ? 0 : weights[s.component] * s.value;
      const item = el("li", undefined, "s" + (k % 8));
      const head = el("b");
      head.append(el("i", undefined, "swatch"), el("bdi", s.component), el("span", signed(s.raw)));
      const whole = s.start === 0 && s.end === letters.length;
      const said = el("blockquote", letters.slice(s.start, s.end).join(""));
      said.dir = "auto";
      const facts = el("dl");
      for (const [name, words] of [
        ["model", part.model],
        ["value", signed(s.raw, 3) + (s.value === s.raw ? "" : ", counts as " + signed(s.value, 3))],
        ["weight", plain(weights[s.component]) + (shut ? "; its gate is closed in this answer" : "")],
        ["reward", signed(weighted, 3) + ", paid " + part.paid],
        ["advantage", n > 1 && total !== null ? signed(weighted * (1 - 1 / n), 3) : "needs another answer"],
      ])
        facts.append(el("dt", name), el("dd", words));
      item.append(head, ...(whole ? [el("span", "of the whole answer", "none")] : [said]), facts);
      list.append(item);
    }
    const about = "Answer " + (chosen.answer + 1) + (total === null ? " has no score." : " earns " + signed(total) + "; its advantage over the mean of " + n + " answers is " + signed(total - mean()) + ".");
    const how = "A piece's advantage is its reward times (1 \u2212 1/" + n + "): without it, the mean would fall too.";
    const none = el("p", chosen.at === null ? "Click a piece of the answer to see who judged it." : "No component judged this piece.", "none");
    $("piece").replaceChildren(el("p", about), over.length ? list : none, ...(over.length && n > 1 ? [el("p", how, "note")] : []));
    $("mark").hidden = !over.length || !types.length;
    $("restore").hidden = answer.text === drawn[chosen.answer].text;
    const spans = new Map(over.filter((s) => letters.slice(s.start, s.end).join("").trim()).map((s) => [s.start + " " + s.end, s]));
    const before = $("span").value;
    $("span").replaceChildren(...[...spans].map(([key, s]) => new Option(short(letters.slice(s.start, s.end).join("")), key)));
    if (spans.has(before)) $("span").value = before;
    else if (over.length) $("type").value = (types.find((type) => type.category === over[0].component) || types[0] || {}).name;
  }
  const short = (text) => (text.length > 60 ? text.slice(0, 58) + " …" : text);
  const clicked = (event) => {
    const piece = event.target.closest("#answers .w");
    if (piece) choose(Number(piece.closest("[data-answer]").dataset.answer), Number(piece.dataset.at));
    return Boolean(piece);
  };
  $("answers").addEventListener("click", clicked);
  $("answers").addEventListener("keydown", (event) => {
    if ((event.key === "Enter" || event.key === " ") && clicked(event)) event.preventDefault();
  });

  $("close").addEventListener("click", () => {
    chosen = null;
    explain();
  });

  // Changes and marks ----------------------------------------------------------------------------------------------

  async function score() {
    const place = chosen.answer;
    const mine = ++turn;
    const text = $("changed").value;
    const before = totalOf(drawn[place]);
    const changed = text === drawn[place].text ? drawn[place] : { policy: drawn[place].policy, text, edited: true };
    const answers = given.answers
      .with(place, changed)
      .map(({ policy, text, tokens, finished, edited = false }) => ({ policy, text, tokens, finished, edited }));
    $("moved").textContent = "Scoring …";
    try {
      const value = await ask("/playground/scores", { ...asked, answers });
      if (mine !== turn) return;
      value.answers.forEach((answer, i) => (answer.edited = answers[i].edited));
      if (chosen && chosen.answer === place) chosen.at = null;
      show(value);
      const now = totalOf(value.answers[place]);
      const moves = given.components
        .map(({ name }) => [name, drawn[place].worth[name], value.answers[place].worth[name]])
        .filter(([, was, is]) => Math.abs(was - is) > TIE)
        .map(([name, was, is]) => name + " " + signed(was) + " → " + signed(is));
      const words = before === null || now === null ? "" : "Total " + signed(before) + " → " + signed(now) + ". ";
      $("moved").textContent = words + (moves.join(", ") || "No component moved.");
    } catch (error) {
      if (mine === turn) $("moved").textContent = error.message;
    }
  }
  $("changed").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(score, DEBOUNCE);
  });
  $("restore").addEventListener("click", () => {
    $("changed").value = drawn[chosen.answer].text;
    score();
  });
  $("mark").addEventListener("submit", async (event) => {
    event.preventDefault();
    const [start, end] = $("span").value.split(" ").map(Number);
    const body = { ...asked, answer: given.answers[chosen.answer].text, start, end, type: $("type").value, explanation: $("why").value };
    try {
      const done = await ask("/playground/marks", body);
      tell($("marked"), "Marked in " + done.file + (done.marks === 1 ? " (the first of this question)." : " (" + done.marks + " marks of this question)."));
      $("why").value = "";
    } catch (error) {
      tell($("marked"), error.message, true);
    }
  });

  showRun();
})();
