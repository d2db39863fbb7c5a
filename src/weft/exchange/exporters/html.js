"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const all = (selector, under = document) => Array.from(under.querySelectorAll(selector));
  const words = at("words"), found = at("found"), only = at("only"), unfold = at("unfold"), thread = at("thread");
  const main = at("said");
  const turns = all(".turn"), strands = all(".strand");
  const lowered = new WeakMap();
  let hits = [], now = -1, waiting = 0;

  const textOf = (block) => {
    let text = lowered.get(block);
    if (text === undefined) {
      text = block.textContent.toLowerCase();
      lowered.set(block, text);
    }
    return text;
  };
  const isHidden = (element) => element.closest("[hidden]") !== null;

  const clear = () => {
    for (const element of all(".hit, .has-hit, .now")) element.classList.remove("hit", "has-hit", "now");
    hits = [];
    now = -1;
    if (CSS.highlights) CSS.highlights.clear();
  };

  const paint = (block, wanted) => {
    if (!CSS.highlights) return;
    const ranges = [];
    const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node && ranges.length < 500; node = walker.nextNode()) {
      const text = node.data.toLowerCase();
      if (text.length !== node.data.length) continue;
      for (let i = text.indexOf(wanted); i >= 0; i = text.indexOf(wanted, i + wanted.length)) {
        const range = new Range();
        range.setStart(node, i);
        range.setEnd(node, i + wanted.length);
        ranges.push(range);
      }
    }
    CSS.highlights.set("found", new Highlight(...ranges));
  };

  const search = () => {
    waiting = 0;
    clear();
    const wanted = words.value.trim().toLowerCase();
    main.classList.toggle("only", only.checked && wanted !== "");
    if (!wanted) {
      found.textContent = "";
      return;
    }
    for (const turn of turns) {
      if (isHidden(turn) || !textOf(turn).includes(wanted)) continue;
      turn.classList.add("has-hit");
      const inside = all(".block", turn).filter((block) => textOf(block).includes(wanted));
      const innermost = inside.filter((block) => !inside.some((other) => other !== block && block.contains(other)));
      for (const block of inside) block.classList.add("has-hit");
      for (const block of innermost.length ? innermost : [turn]) {
        block.classList.add("hit");
        hits.push(block);
      }
    }
    found.textContent = hits.length === 1 ? "1 hit" : hits.length + " hits";
  };
  const soon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(search, 150);
  };

  const go = (step) => {
    if (waiting) {
      clearTimeout(waiting);
      search();
    }
    if (!hits.length) return;
    if (now >= 0) hits[now].classList.remove("now");
    now = (now + step + hits.length) % hits.length;
    const hit = hits[now];
    for (let fold = hit.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    hit.classList.add("now");
    paint(hit, words.value.trim().toLowerCase());
    hit.scrollIntoView({ block: "center" });
    found.textContent = now + 1 + " of " + hits.length;
  };

  const setFolds = (open) => {
    for (const fold of all("details.block", main)) fold.open = open;
    unfold.setAttribute("aria-pressed", String(open));
    unfold.textContent = open ? "Fold all" : "Unfold all";
  };
  const toggleFolds = () => setFolds(unfold.getAttribute("aria-pressed") !== "true");

  const step = (by) => {
    const shown = turns.filter((turn) => !isHidden(turn) && turn.offsetParent !== null);
    const focused = shown.indexOf(document.activeElement.closest(".turn"));
    const below = shown.findIndex((turn) => turn.getBoundingClientRect().top >= 0);
    const here = focused >= 0 ? focused : below < 0 ? shown.length : below - (by > 0 ? 1 : 0);
    const next = shown[Math.max(0, Math.min(here + by, shown.length - 1))];
    if (!next) return;
    next.scrollIntoView();
    next.querySelector("h3 a").focus({ preventScroll: true });
  };

  const read = () => {
    const upTo = new Map();
    for (let number = thread ? thread.value : "", depth = Infinity; number !== undefined && number !== ""; ) {
      const strand = strands[Number(number)];
      upTo.set(strand, depth);
      depth = Number(strand.dataset.leaves);
      number = strand.dataset.parent;
    }
    for (const strand of strands) {
      strand.hidden = upTo.size > 0 && !upTo.has(strand);
      for (const turn of all(".turn", strand)) {
        turn.hidden = upTo.has(strand) && Number(turn.dataset.depth) > upTo.get(strand);
      }
    }
    search();
  };

  const showTarget = () => {
    const target = location.hash && at(decodeURIComponent(location.hash.slice(1)));
    if (target && isHidden(target) && thread) {
      thread.value = "";
      read();
      target.scrollIntoView();
    }
  };

  const keys = { j: () => step(1), k: () => step(-1), f: toggleFolds, "/": () => words.focus() };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target === words) {
      if (event.key === "Escape") {
        words.value = "";
        search();
        words.blur();
      }
      return;
    }
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || !Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    keys[event.key]();
  });
  words.addEventListener("input", soon);
  words.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    go(event.shiftKey ? -1 : 1);
  });
  at("search").addEventListener("submit", (event) => event.preventDefault());
  at("next").addEventListener("click", () => go(1));
  at("previous").addEventListener("click", () => go(-1));
  only.addEventListener("change", search);
  unfold.addEventListener("click", toggleFolds);
  at("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  for (const control of all("#search, .controls, .reading")) control.hidden = false;
  if (thread) thread.addEventListener("change", read);
  addEventListener("hashchange", showTarget);

  let folded = [];
  addEventListener("beforeprint", () => {
    folded = all("details.block", main).filter((fold) => !fold.open);
    for (const fold of folded) fold.open = true;
  });
  addEventListener("afterprint", () => {
    for (const fold of folded) fold.open = false;
  });
})();
