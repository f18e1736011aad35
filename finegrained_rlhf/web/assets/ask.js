// The page "Ask". All text goes in as text; nothing of a document is ever read as HTML.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  if (!$("ask")) return;
  let session = null;
  async function send(path, body) {
    const answer = await fetch(path, body === undefined ? {} : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    const read = await answer.json().catch(() => ({ error: "The server gave no answer that can be read." }));
    if (!answer.ok) throw new Error(read.error || "Something went wrong.");
    return read;
  }
  function tell(place, text, bad) {
    place.textContent = text;
    place.classList.toggle("bad", Boolean(bad));
  }
  function element(name, text, kind) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  }
  // Places are counted in characters of Python, of which some are two of JavaScript's.
  function around(text, start, end) {
    const letters = Array.from(text);
    const marked = element("mark", letters.slice(start, end).join(""));
    return [letters.slice(0, start).join(""), marked, letters.slice(end).join("")];
  }
  async function open(index, citation) {
    const query = new URLSearchParams({ index, file: citation.file, start: citation.start, end: citation.end });
    const read = await send("/ask/source?" + query);
    const there = Array.from(read.text).slice(citation.start - read.first, citation.end - read.first).join("");
    if (there !== citation.text) throw new Error("The document has changed since; ask again.");
    $("source-title").textContent = citation.file;
    const more = read.characters > Array.from(read.text).length ? ", a part of " + read.characters.toLocaleString("en") : "";
    $("where").textContent = "characters " + citation.start + " to " + citation.end + more;
    $("text").replaceChildren(...around(read.text, citation.start - read.first, citation.end - read.first));
    $("source").hidden = false;
    $("text").querySelector("mark").scrollIntoView({ block: "center" });
    $("close").focus();
  }
  function cite(index, citation, label) {
    const button = element("button", label);
    button.type = "button";
    button.addEventListener("click", () => open(index, citation).catch((error) => tell($("status"), error.message, true)));
    return button;
  }
  function selected(within) {
    const chosen = window.getSelection();
    if (!chosen.rangeCount || chosen.isCollapsed || !within.contains(chosen.anchorNode) || !within.contains(chosen.focusNode)) return null;
    const range = chosen.getRangeAt(0);
    const parts = [...within.querySelectorAll("[data-start]")].filter((part) => range.intersectsNode(part.firstChild));
    if (!parts.length) return null;
    const place = (node, offset, part) => Number(part.dataset.start) + Array.from(node.data.slice(0, offset)).length;
    const [first, last] = [parts[0], parts[parts.length - 1]];
    const start = range.startContainer === first.firstChild ? place(first.firstChild, range.startOffset, first) : Number(first.dataset.start);
    const end = range.endContainer === last.firstChild ? place(last.firstChild, range.endOffset, last) : place(last.firstChild, last.firstChild.length, last);
    return end > start ? { start, end } : null;
  }
  function show(index, given) {
    const turn = $("turn").content.cloneNode(true).firstElementChild;
    const find = (kind) => turn.querySelector("." + kind);
    find("asked").textContent = given.question;
    const asked = given.searched.question;
    find("kind").textContent = given.type + (asked === given.question ? "" : " · searched for: " + asked);
    let at = 0;
    for (const sentence of given.sentences) {
      const part = element("span", sentence.text, sentence.supported ? "" : "unsupported");
      part.dataset.start = at;
      if (!sentence.supported) part.title = "What is cited does not support this";
      find("answer").append(part);
      for (const number of sentence.citations) {
        const button = cite(index, given.citations[number], String(number + 1));
        button.className = "cite";
        button.setAttribute("aria-label", "Citation " + (number + 1));
        find("answer").append(button);
      }
      find("answer").append(" ");
      at += Array.from(sentence.text).length + 1;
    }
    for (const citation of given.citations) {
      const item = element("li");
      item.append(cite(index, citation, citation.file), element("q", citation.text));
      find("citations").append(item);
    }
    find("searched").querySelector("summary").textContent =
      given.looked.length + (given.looked.length === 1 ? " passage" : " passages") + " looked at, by " + given.searched.retrievers.join(" and ");
    find("searched").querySelector(".note").textContent =
      "Probability that the best sentence answers; below " + given.searched.threshold.toFixed(2) + " nothing is answered.";
    given.searched.passages.forEach((place, number) => {
      const read = given.looked[number];
      const box = element("div");
      const text = element("p");
      text.append(...around(read.text, place.best[0] - place.start, place.best[1] - place.start));
      box.append(element("h3", place.probability.toFixed(2) + " · " + read.titles.join(" › ")), text);
      find("passages").append(box);
    });
    const say = async (verdict, more) => {
      try {
        const kept = await send("/ask/feedback", { session: given.session, turn: given.turn, verdict, ...more });
        tell(find("said"), "kept in " + kept.file);
      } catch (error) {
        tell(find("said"), error.message, true);
      }
    };
    find("up").addEventListener("click", () => say("up"));
    find("down").addEventListener("click", () => say("down"));
    find("mark").addEventListener("click", () => {
      const place = selected(find("answer"));
      if (!place) return tell(find("said"), "Select words of the answer first.", true);
      say("mark", { ...place, type: find("type").value });
    });
    find("edit").addEventListener("click", () => {
      find("change").hidden = !find("change").hidden;
      const text = find("change").querySelector("textarea");
      if (!text.value) text.value = given.answer;
      text.focus();
    });
    find("change").addEventListener("submit", (event) => {
      event.preventDefault();
      say("edit", { text: find("change").querySelector("textarea").value });
    });
    $("turns").prepend(turn);
  }
  $("ask").addEventListener("submit", async (event) => {
    event.preventDefault();
    const [index, question] = [$("index").value, $("question").value.trim()];
    if (!question) return;
    $("go").disabled = true;
    tell($("status"), "Looking …");
    try {
      const given = await send("/ask/answers", { index, question, session });
      const over = session && session !== given.session;
      session = given.session;
      show(index, given);
      $("question").value = "";
      $("new").hidden = false;
      tell($("status"), over ? "The conversation before is over; this answer begins a new one." : "");
    } catch (error) {
      tell($("status"), error.message, true);
    }
    $("go").disabled = false;
  });
  $("question").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      $("ask").requestSubmit();
    }
  });
  function begin() {
    session = null;
    $("turns").replaceChildren();
    $("new").hidden = $("source").hidden = true;
  }
  $("new").addEventListener("click", begin);
  $("index").addEventListener("change", begin);
  $("close").addEventListener("click", () => { $("source").hidden = true; });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") $("source").hidden = true; });
})();
