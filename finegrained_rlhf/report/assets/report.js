// Shows what a piece of a response carries, at the pointer, at a tap, or at the arrow keys. Without this script the
// same words are the browser's own tooltips.
(() => {
  "use strict";
  const tip = document.getElementById("tip");
  let shown = null;
  let last = null; // where the arrow keys go on from
  let pointer = ""; // where the pointer was last

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
    shown = last = piece;
    piece.classList.add("on");
    tip.textContent = words;
    tip.hidden = false;
    place(piece);
  }

  function place(piece) {
    const at = piece.getClientRects()[0] || piece.getBoundingClientRect();
    const left = Math.min(at.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
    const above = at.top - tip.offsetHeight - 8;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = (above > 8 ? above : at.bottom + 8) + "px";
  }

  const pieceAt = (target) => (target instanceof Element ? target.closest(".w") : null);

  document.addEventListener("pointerover", (event) => {
    const here = event.clientX + " " + event.clientY;
    if (event.pointerType === "touch" || here === pointer) return; // the page moved, not the pointer
    pointer = here;
    const piece = pieceAt(event.target);
    if (piece) show(piece);
    else hide();
  });
  document.addEventListener("click", (event) => {
    const piece = pieceAt(event.target);
    if (piece) show(piece);
    else hide();
  });
  document.addEventListener("pointermove", (event) => (pointer = event.clientX + " " + event.clientY), { passive: true });
  document.addEventListener(
    "scroll",
    () => {
      if (shown && document.activeElement.contains(shown) && document.activeElement.matches(":focus-visible")) place(shown);
      else hide(); // what the pointer showed is somewhere else now; what a key showed moves along
    },
    { passive: true },
  );
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
    const next = pieces[pieces.indexOf(last) + step];
    if (!next) return;
    event.preventDefault();
    next.scrollIntoView({ block: "nearest" });
    show(next);
  });
})();
