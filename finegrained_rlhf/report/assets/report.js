// Shows what a piece of a response carries, at the pointer, at a tap, or at the arrow keys. Without this script the
// same words are the browser's own tooltips.
(() => {
  "use strict";
  const tip = document.getElementById("tip");
  let shown = null;

  function wordsOf(piece) {
    if (piece.title) {
      piece.dataset.tip = piece.title;
      piece.removeAttribute("title");
    }
    return piece.dataset.tip || "";
  }

  function hide() {
    if (shown) shown.classList.remove("on");
    shown = null;
    tip.hidden = true;
  }

  function show(piece) {
    if (piece === shown) return;
    hide();
    const words = wordsOf(piece);
    if (!words) return;
    shown = piece;
    piece.classList.add("on");
    tip.textContent = words;
    tip.hidden = false;
    const at = piece.getClientRects()[0] || piece.getBoundingClientRect();
    const left = Math.min(at.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
    const above = at.top - tip.offsetHeight - 8;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = (above > 8 ? above : at.bottom + 8) + "px";
  }

  const pieceAt = (target) => (target instanceof Element ? target.closest(".w") : null);

  document.addEventListener("pointerover", (event) => {
    if (event.pointerType === "touch") return;
    const piece = pieceAt(event.target);
    if (piece) show(piece);
    else hide();
  });
  document.addEventListener("click", (event) => {
    const piece = pieceAt(event.target);
    if (piece) show(piece);
    else hide();
  });
  document.addEventListener("scroll", hide, { passive: true });
  document.addEventListener("focusin", (event) => {
    if (event.target.classList.contains("text") && event.target.matches(":focus-visible")) {
      const first = event.target.querySelector(".w");
      if (first) show(first);
    }
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const text = document.activeElement;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !text.classList.contains("text")) return;
    const pieces = [...text.querySelectorAll(".w")];
    const next = pieces[pieces.indexOf(shown) + step];
    if (!next) return;
    event.preventDefault();
    next.scrollIntoView({ block: "nearest" });
    show(next);
  });
})();
