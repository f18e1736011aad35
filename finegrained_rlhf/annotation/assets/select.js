"use strict";
/* What is selected in the answer: the browser's own selection, however it was made (mouse, keys, touch handles), as far as
   it lies in the answer. Knows the answer's box and offsets in its text; knows no marks. */
const Picked = (() => {
  const TAP = 500;
  const box = () => document.getElementById("answer");
  const whole = () => {
    const range = document.createRange();
    range.selectNodeContents(box());
    return range;
  };
  const offset = (node, within) => {
    const range = whole();
    range.setEnd(node, within);
    return range.toString().length;
  };
  const point = (place) => {
    const walker = document.createTreeWalker(box(), NodeFilter.SHOW_TEXT);
    let seen = 0;
    while (walker.nextNode()) {
      if (place <= seen + walker.currentNode.length) return [walker.currentNode, place - seen];
      seen += walker.currentNode.length;
    }
    return [box(), 0];
  };
  const range = (from, to) => {
    const made = document.createRange();
    made.setStart(...point(from));
    made.setEnd(...point(to));
    return made;
  };

  /* Offsets [anchor, caret] of the part that lies in the answer; null where there is none. */
  const read = () => {
    const chosen = window.getSelection();
    if (!box() || !chosen.rangeCount) return null;
    const seen = chosen.getRangeAt(0), all = whole();
    if (!seen.intersectsNode(box())) return null;
    const before = seen.compareBoundaryPoints(Range.START_TO_START, all) < 0;
    const behind = seen.compareBoundaryPoints(Range.END_TO_END, all) > 0;
    if (seen.collapsed && (before || behind)) return null;
    const from = before ? 0 : offset(seen.startContainer, seen.startOffset);
    const to = behind ? all.toString().length : offset(seen.endContainer, seen.endOffset);
    const backward = chosen.anchorNode === seen.endContainer && chosen.anchorOffset === seen.endOffset;
    return backward ? [to, from] : [from, to];
  };
  const set = (anchor, caret) => window.getSelection().setBaseAndExtent(...point(anchor), ...point(caret));

  /* A tap on a type may take the browser's selection away before the click comes: what was seen selected is held so long. */
  let held = false;
  const watch = (changed) => {
    const release = () => { held = false; changed(); };
    document.addEventListener("selectionchange", changed);
    document.addEventListener("pointerdown", (event) => { held = Boolean(event.target.closest(".type")); }, true);
    /* The mouse on selected words would drag them away; it is to select anew. */
    document.addEventListener("pointerdown", (event) => {
      const anew = event.pointerType === "mouse" && event.button === 0 && !event.shiftKey && event.target.closest("#answer");
      if (anew) window.getSelection().removeAllRanges();
    });
    document.addEventListener("keydown", () => { held = false; }, true);
    document.addEventListener("click", () => { if (held) release(); });
    for (const name of ["pointerup", "pointercancel"]) {  // where no click comes
      document.addEventListener(name, () => { if (held) setTimeout(() => { if (held) release(); }, TAP); }, true);
    }
  };
  return { read, set, range, watch, get held() { return held; } };
})();
