"use strict";
// Brings the figures to life. Every number shown here was worked out in Python and stands in the data; this only looks up.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));

  const slider = byId("turn"), now = byId("now"), play = byId("play"), hint = byId("hint"), said = byId("said");
  const count = data.grid.rows * data.grid.cols;
  const plural = (n, thing) => `${n} ${thing}${n === 1 ? "" : "s"}`;
  const one = data.every > 1 ? "cell" : "tile";  // of a large grid, a cell stands for several tiles

  // One panel per mapping: where each turn computes, and the elements that show it.
  const panels = all("article").map((article, at) => {
    const mapping = data.mappings[at];
    const tiles = new Array(count);
    mapping.turns.forEach((row, r) => row.forEach((turn, c) => (tiles[turn] = [r, c])));
    const squares = (kind) => {
      const found = new Array(count);
      all(`.${kind} .tile`, article).forEach((tile) => (found[Number(tile.dataset.turn)] = tile));
      return found;
    };
    const labels = Array.from({ length: count }, () => []);
    all(".order [data-label], .xcds [data-label]", article).forEach((label) => labels[Number(label.dataset.label)].push(label));
    const paths = all(".path", article).map((line) => ({
      line, points: line.getAttribute("points").split(" "), turns: line.dataset.turns.split(" ").map(Number),
    }));
    const [order, xcds, reads, costs, groups] = ["order", "xcds", "reads", "costs", "groups"].map(squares);
    return { article, mapping, tiles, paths, labels, order, xcds, reads, costs, groups };
  });

  const wordsFor = (panel, turn) => {
    const [row, col] = panel.tiles[turn];
    const m = panel.mapping;
    const k = plural(data.k_blocks, "block");
    const [at_row, at_col] = [row * data.every, col * data.every];
    const rows = data.groups ? data.groups.rows : null;
    const what = rows && rows.group[at_row] < 0 ? "no rows"
      : rows ? `group ${rows.group[at_row]}, rows ${rows.first[at_row]} to ${Math.min(rows.end[at_row], rows.first[at_row] + data.groups.block) - 1}`
      : m.balance ? `iterates over ${plural(m.balance.costs[at_row][at_col], "block")} of keys`
      : `reads ${k} of A in row ${at_row}\nreads ${k} of B in column ${at_col}`;
    return `tile (${at_row}, ${at_col})\nworkgroup ${m.workgroups[row][col]} · XCD ${m.xcds[row][col]}`
      + ` · wave ${m.rounds[row][col] + 1}\n${what}`;
  };

  // ---- the launch, tile by tile -------------------------------------------------------------------------------------
  let shown = count, timer = null;

  const showPath = (path, upTo) => {
    let many = 0;
    if (upTo === count) many = path.turns.length;
    else {
      let high = path.turns.length;
      while (many < high) { const mid = (many + high) >> 1; if (path.turns[mid] < upTo) many = mid + 1; else high = mid; }
    }
    path.line.setAttribute("points", path.points.slice(0, many).join(" "));
  };

  const show = (upTo) => {
    upTo = Math.max(0, Math.min(count, upTo));
    const [low, high] = [Math.min(shown, upTo), Math.max(shown, upTo)];
    for (const panel of panels) {
      for (const squares of [panel.order, panel.xcds]) {
        for (let turn = low; turn < high; turn++) squares[turn].classList.toggle("later", turn >= upTo);
        if (shown > 0) squares[shown - 1].classList.remove("now");
        if (upTo > 0 && upTo < count) squares[upTo - 1].classList.add("now");
      }
      for (let turn = low; turn < high; turn++) {
        panel.labels[turn].forEach((label) => label.classList.toggle("later", turn >= upTo));
      }
      panel.paths.forEach((path) => showPath(path, upTo));
      all(".head", panel.article).forEach((head) => (head.style.visibility = upTo === count ? "" : "hidden"));
    }
    shown = upTo;
    slider.value = String(upTo);
    slider.setAttribute("aria-valuetext", `${upTo} of ${plural(count, one)}`);
    now.textContent = `${upTo} of ${plural(count, one)} launched`;
    if (data.rounds > 1 && upTo > 0) {
      const [row, col] = panels[0].tiles[upTo - 1];
      now.textContent += `, wave ${panels[0].mapping.rounds[row][col] + 1} of ${data.rounds}`;
    }
  };

  const stop = () => {
    if (timer !== null) cancelAnimationFrame(timer);
    timer = null;
    play.textContent = "▶ Play";
    play.setAttribute("aria-label", "Play");
  };

  const start = () => {
    if (shown >= count) show(0);
    play.textContent = "⏸ Pause";
    play.setAttribute("aria-label", "Pause");
    // A whole launch lasts as long as is chosen, whatever its size; whoever wants less motion sees ten pictures of it.
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches, least = calm ? Math.ceil(count / 10) : 1;
    let last = performance.now(), owed = 0;
    const frame = (time) => {
      owed += ((time - last) / 1000) * (count / Number(byId("lasts").value));
      last = time;
      const steps = Math.floor(owed / least) * least;
      owed -= steps;
      if (steps > 0) show(shown + steps);
      if (shown >= count) stop(); else timer = requestAnimationFrame(frame);
    };
    timer = requestAnimationFrame(frame);
  };

  const go = (upTo) => { stop(); show(upTo); };
  play.addEventListener("click", () => (timer === null ? start() : stop()));
  byId("first").addEventListener("click", () => go(0));
  byId("back").addEventListener("click", () => go(shown - 1));
  byId("step").addEventListener("click", () => go(shown >= count ? 1 : shown + 1));
  slider.addEventListener("input", () => go(Number(slider.value)));

  // ---- the reads of one XCD -----------------------------------------------------------------------------------------
  const mark = (element, used, paint) => {
    element.classList.toggle("used", used);
    element.classList.toggle("empty", !used);
    element.style.fill = used ? paint : "";
  };

  const choose = (xcd) => {
    const paint = data.paints[xcd];
    for (const panel of panels) {
      const [rows, cols] = panel.mapping.read_by[xcd].map((found) => new Set(found));
      const figure = panel.article.querySelector(".reads");
      panel.tiles.forEach(([row, col], turn) => {
        const mine = panel.mapping.xcds[row][col] === xcd;
        if (figure) mark(panel.reads[turn], mine, paint);
        const square = panel.xcds[turn];
        square.classList.toggle("chosen", mine);
        square.style.setProperty("--thick", `${Math.min(2.5, Number(square.getAttribute("width")) / 14)}px`);
      });
      if (!figure) continue;
      all("[data-label]", figure).forEach((label) => {
        const [row, col] = panel.tiles[Number(label.dataset.label)];
        const mine = panel.mapping.xcds[row][col] === xcd;
        label.classList.toggle("label", mine);
        label.classList.toggle("soft", !mine);
        label.setAttribute("fill", mine ? data.label : "");
      });
      all("[data-row]", figure).forEach((block) => mark(block, rows.has(Number(block.dataset.row)), paint));
      all("[data-col]", figure).forEach((block) => mark(block, cols.has(Number(block.dataset.col)), paint));
      const key = figure.querySelector("g .used:not(.tile):not([data-row]):not([data-col])");
      if (key) key.style.fill = paint;
      figure.querySelector("text").textContent = panel.mapping.said[xcd].title;
      figure.querySelector(".sum").textContent = panel.mapping.said[xcd].sum;
    }
  };
  const radios = all(".chooser input");
  radios.forEach((radio) => radio.addEventListener("change", () => choose(Number(radio.value))));

  // ---- what a tile says ---------------------------------------------------------------------------------------------
  let looked = null;
  const look = (panel, tile, x, y) => {
    if (looked) looked.classList.remove("looked");
    looked = tile;
    if (!tile) { hint.hidden = true; return; }
    tile.classList.add("looked");
    hint.textContent = wordsFor(panel, Number(tile.dataset.turn));
    hint.hidden = false;
    const box = hint.getBoundingClientRect();
    hint.style.left = `${Math.max(4, Math.min(x + 16, innerWidth - box.width - 8))}px`;
    hint.style.top = `${y + 20 + box.height > innerHeight ? Math.max(4, y - box.height - 14) : y + 20}px`;
  };

  const walk = (panel, svg, squares) => {
    let row = 0, col = 0;
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!move) return;
      event.preventDefault();
      row = Math.max(0, Math.min(data.grid.rows - 1, row + move[0]));
      col = Math.max(0, Math.min(data.grid.cols - 1, col + move[1]));
      const tile = squares[panel.mapping.turns[row][col]];
      const box = tile.getBoundingClientRect();
      look(panel, tile, box.right, box.bottom);
      said.textContent = hint.textContent;
    });
    svg.addEventListener("blur", () => look(panel, null));
  };

  for (const panel of panels) {
    all("figure", panel.article).forEach((figure) => {
      const svg = figure.querySelector("svg");
      svg.setAttribute("tabindex", "0");
      walk(panel, svg, panel[svg.querySelector(".figure").classList[1]]);
      figure.addEventListener("pointermove", (event) => {
        // Numbers stand on the tiles: what lies below the pointer is asked for, not what caught the event.
        const tile = document.elementsFromPoint(event.clientX, event.clientY).find((e) => e.classList.contains("tile"));
        look(panel, tile && figure.contains(tile) ? tile : null, event.clientX, event.clientY);
      });
      figure.addEventListener("pointerleave", () => look(panel, null));
      figure.addEventListener("click", () => {
        if (!looked || !figure.contains(looked)) return;
        const [row, col] = panel.tiles[Number(looked.dataset.turn)];
        const radio = radios[panel.mapping.xcds[row][col]];
        radio.checked = true;
        choose(Number(radio.value));
      });
    });
  }

  // ---- keys and colours ---------------------------------------------------------------------------------------------
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select, button") || event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = { " ": () => play.click(), ".": () => byId("step").click(), ",": () => byId("back").click(),
      Home: () => byId("first").click(), Escape: () => look(null, null) };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  // A link such as map.html#turn=24&xcd=2&theme=dark opens the page in that state.
  const wish = new URLSearchParams(location.hash.slice(1));
  const within = (name, otherwise, limit) => {
    const value = Number.parseInt(wish.get(name), 10);
    return value >= 0 && value <= limit ? value : otherwise;
  };
  root.dataset.theme = ["dark", "light"].includes(wish.get("theme")) ? wish.get("theme") : dark.matches ? "dark" : "light";
  byId("theme").addEventListener("click", () => (root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark"));

  show(within("turn", count, count));
  const xcd = within("xcd", 0, radios.length - 1);
  radios[xcd].checked = true;
  choose(xcd);
})();
