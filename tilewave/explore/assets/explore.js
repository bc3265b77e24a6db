"use strict";
// The page: what is chosen stands in the address behind #, everything shown was worked out in Python.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
  const make = (name, words = "", attributes = {}) => {
    const element = document.createElement(name);
    element.textContent = words;
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const plural = (n, thing) => `${n} ${thing}${n === 1 ? "" : "s"}`;
  const bytes = (n) => {
    for (const [unit, scale] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (n >= scale) return `${Number((n / scale).toPrecision(3))} ${unit}`;
    return `${Math.round(n)} B`;
  };
  const root = document.documentElement, main = byId("main"), form = byId("chooser"), hint = byId("hint");
  const isAlone = Object.keys(data.answers).length > 0;
  const fields = Object.keys(data.start);
  const VIEW = { tab: "tiles", mode: "xcd", turn: "", pass: "", line: "", theme: "" };
  const DTYPES = ["f16", "bf16", "f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "i8", "f32", "f64"];
  const ORDERS = ["linear()", "grouped(8)", "grouped(16)", "snake(8)", "hilbert()", "morton()", "supertiles(4, 8)",
    "xcd_contiguous(8) >> grouped(8)", "xcd_contiguous(8) >> hilbert()", "xcd_chunked(8, 32) >> grouped(8)"];

  // ---- the state, and its address -----------------------------------------------------------------------------------
  let chosen = { ...data.start }, view = { ...VIEW };

  const readAddress = () => {
    const wish = new URLSearchParams(location.hash.slice(1));
    chosen = { ...data.start };
    view = { ...VIEW };
    for (const [name, value] of wish) {
      if (Object.hasOwn(chosen, name) && !isAlone) chosen[name] = value;
      else if (Object.hasOwn(view, name)) view[name] = value;
    }
    if (!all("#mode option").some((option) => option.value === view.mode)) view.mode = VIEW.mode;
    if (!/^\d*$/.test(view.line)) view.line = "";
  };
  const address = () => {
    const told = new URLSearchParams();
    for (const name of fields) if (chosen[name] !== data.start[name]) told.set(name, chosen[name]);
    for (const name of Object.keys(VIEW)) if (view[name] !== VIEW[name]) told.set(name, view[name]);
    return `#${told}`;
  };
  const writeAddress = () => { if (address() !== location.hash) history.replaceState(null, "", address()); };

  // ---- asking -------------------------------------------------------------------------------------------------------
  let asked = 0;
  const known = new Map();
  const ask = async (question) => {
    if (isAlone) return data.answers[question];
    const query = new URLSearchParams();
    for (const name of fields) if (chosen[name] !== data.start[name]) query.set(name, chosen[name]);
    const key = `api/${question}?${query}`;
    if (!known.has(key)) {
      const response = await fetch(key);
      const answer = await response.json();
      if (!response.ok) return answer;  // a file may be mended meanwhile: a refusal is not kept
      if (!data.kernels.length) known.set(key, answer);
      return answer;
    }
    return known.get(key);
  };
  const fault = (words) => { byId("fault").textContent = words ? `error: ${words}` : ""; byId("fault").hidden = !words; };

  const refresh = async () => {
    const mine = ++asked;
    stop();
    main.setAttribute("aria-busy", "true");
    let answer;
    try {
      answer = await ask(view.tab === "passes" ? "passes" : view.tab === "code" ? "code" : "launch");
    } catch (error) {
      answer = { error: "the explorer does not answer; is `tilewave explore` still running?" };
    }
    if (mine !== asked) return;
    main.setAttribute("aria-busy", "false");
    fault(answer.error ?? "");
    if (answer.error) return;
    const sizes = data.kernels.length ? chosen.sizes : chosen.shape;
    const what = [answer.problem ?? answer.kernel, answer.problem && !data.kernels.length ? "" : sizes].filter(Boolean).join("; ");
    byId("problem").textContent = answer.machine ? `${what} on ${answer.machine}` : `${what}, compiled for ${answer.target}`;
    ({ passes: showPasses, code: showCode }[view.tab] ?? showLaunch)(answer);
  };

  // ---- controls -----------------------------------------------------------------------------------------------------
  const options = (name, values, words = (x) => x) => {
    form.elements[name].replaceChildren(...values.map((value) => make("option", words(value), { value })));
  };
  const fillForm = () => {
    const isFile = data.kernels.length > 0;
    all("[data-of]").forEach((label) => (label.hidden = (label.dataset.of === "file") !== isFile));
    options("kernel", data.kernels);
    options("dtype", DTYPES);
    options("machine", Object.keys(data.machines));
    options("target", ["", ...data.targets], (x) => x || "the machine's chip");
    byId("orders").replaceChildren(...ORDERS.map((value) => make("option", "", { value })));
    form.elements.map.placeholder = isFile ? "the kernel's own order" : "linear()";
    byId("alone").hidden = !isAlone;
    byId("alone").textContent = "This page holds one choice. For others, run: tilewave explore";
    all("input, select, #show", form).forEach((control) => (control.disabled = isAlone));
  };
  const showChosen = () => { for (const name of fields) form.elements[name].value = chosen[name] || (name === "kernel" ? data.kernels[0] ?? "" : ""); };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    for (const name of fields) chosen[name] = form.elements[name].value.trim();
    if (chosen.kernel === data.kernels[0]) chosen.kernel = data.start.kernel;
    view.turn = "";
    writeAddress();
    refresh();
  });
  all("select, input", form).forEach((control) => control.addEventListener("change", () => form.requestSubmit()));

  const tabs = all("[role=tab]");
  const open = (tab) => {
    view.tab = tabs.some((t) => t.id === `tab-${tab}`) ? tab : "tiles";
    for (const t of tabs) {
      const mine = t.id === `tab-${view.tab}`;
      t.setAttribute("aria-selected", String(mine));
      t.tabIndex = mine ? 0 : -1;
      byId(t.getAttribute("aria-controls")).hidden = !mine;
    }
    writeAddress();
    refresh();
  };
  tabs.forEach((tab, at) => {
    tab.addEventListener("click", () => open(tab.id.slice(4)));
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = tabs[(to + tabs.length) % tabs.length];
      next.focus();
      next.click();
    });
  });

  // ---- the tiles ----------------------------------------------------------------------------------------------------
  let launch = null, grids = [], count = 0, shown = 0, timer = null;
  const slider = byId("turn"), now = byId("now"), play = byId("play");
  const BYTES = ["hbm", "missed", "asked"];
  const WORDS = { hbm: "bytes from HBM", missed: "bytes missed in L2", asked: "bytes requested" };

  const showLaunch = (answer) => {
    launch = answer;
    if (view.tab === "traffic") showTraffic(); else showTiles();
  };

  const showTiles = () => {
    const known = (mode) => !BYTES.includes(mode) || launch.runs.every((run) => run.tiles?.cells[mode]);
    all("#mode option").forEach((option) => (option.disabled = !known(option.value)));
    if (!known(view.mode)) view.mode = VIEW.mode;
    const panels = launch.runs.map((run) => panel(run.mapping, run.tiles, run));
    const both = launch.runs.length > 1 && launch.runs.every((run) => run.tiles) && BYTES.includes(view.mode);
    if (both) panels.push(panel("difference", launch.runs[0].tiles, null));
    byId("grids").replaceChildren(...panels.map((p) => p.element));
    grids = panels.filter((p) => p.grid).map((p) => p.grid);
    count = Math.max(0, ...launch.runs.map((run) => (run.tiles ? run.tiles.count : 0)));
    slider.max = String(count);
    byId("mode").value = view.mode;
    colour();
    fit();
    const wish = Number.parseInt(view.turn, 10);
    show(wish >= 0 && wish <= count ? wish : count);
    byId("grid-note").textContent = note();
  };

  const panel = (name, tiles, run) => {
    const element = make("div", "", { class: "panel" });
    const title = make("h2");
    title.append(make("code", name));
    element.append(title);
    run?.warnings.forEach((words) => element.append(make("p", words, { class: "warning" })));
    element.append(make("p", `${tiles.rows} × ${tiles.cols} tiles: M downwards, N to the right`, { class: "axis" }));
    const box = make("div", "", { class: "grid" });
    const grid = new TileGrid(box, tiles);
    grid.run = run;
    grid.key = make("div", "", { class: "key" });
    grid.cells.setAttribute("aria-label", `${name}: ${tiles.rows} by ${tiles.cols} tiles; arrow keys describe one`);
    element.append(box, grid.key);
    listen(grid);
    return { element, grid };
  };

  const note = () => {
    const tiles = launch.runs.find((run) => run.tiles)?.tiles;
    if (!tiles) return "";
    const parts = [];
    if (tiles.every > 1) parts.push(`Each cell is ${tiles.every} × ${tiles.every} tiles: it shows the first of them, and their mean bytes.`);
    if (tiles.wrapped) parts.push("The tiles form one column; they are drawn in rows, from left to right.");
    if (grids.some((grid) => grid.marked)) parts.push("Lines separate the waves of workgroups.");
    return parts.join(" ");
  };

  const range = (mode) => {
    const values = launch.runs.filter((run) => run.tiles).flatMap((run) => run.tiles.cells[mode].filter((x) => x >= 0));
    return [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
  };

  const colour = () => {
    const fills = data.colours.xcds.map(rgb), first = rgb(data.colours.first), last = rgb(data.colours.last), heat = data.colours.heat.map(rgb);
    for (const grid of grids) {
      const cells = grid.tiles.cells, rounds = grid.lastRound + 1;
      const ways = {
        xcd: (cell) => mix(fills[cells.xcd[cell] % fills.length], [0, 0, 0], 0.22 * Math.floor(cells.xcd[cell] / fills.length)),
        turn: (cell) => mix(first, last, cells.turn[cell] / Math.max(count - 1, 1)),
        round: (cell) => mix(fills[cells.round[cell] % 2 ? 1 : 0], last, cells.round[cell] / Math.max(rounds - 1, 1) / 2),
      };
      if (grid.run === null) difference(grid);
      else if (BYTES.includes(view.mode)) {
        const [low, high] = range(view.mode);
        grid.colour((cell) => onRamp(heat, (cells[view.mode][cell] - low) / (high - low || 1)));
        rampKey(grid, low, high);
      } else { grid.colour(ways[view.mode]); plainKey(grid, fills, first, last); }
    }
  };

  const difference = (grid) => {
    const [one, two] = launch.runs.map((run) => run.tiles.cells[view.mode]);
    const most = one.reduce((most, value, cell) => Math.max(most, Math.abs(two[cell] - value)), 0);
    grid.colour((cell) => {
      const apart = (two[cell] - one[cell]) / (most || 1);
      return mix(SAME, apart < 0 ? LESS : MORE, Math.abs(apart));
    });
    const ramp = make("span", "", { class: "ramp" });
    ramp.style.background = `linear-gradient(90deg, ${[LESS, SAME, MORE].map(css).join(", ")})`;
    grid.key.replaceChildren(make("span", `−${bytes(most)}`), ramp, make("span", `+${bytes(most)} ${WORDS[view.mode]}, second minus first`));
  };
  const rampKey = (grid, low, high) => {
    const ramp = make("span", "", { class: "ramp" });
    ramp.style.background = `linear-gradient(90deg, ${data.colours.heat.join(", ")})`;
    grid.key.replaceChildren(make("span", bytes(low)), ramp, make("span", `${bytes(high)} ${WORDS[view.mode]}, each tile`));
  };
  const swatch = (colour, words) => {
    const entry = make("span"), square = make("i");
    square.style.background = css(colour);
    entry.append(square, words);
    return entry;
  };
  const plainKey = (grid, fills, first, last) => {
    const entries = { xcd: () => Array.from({ length: launch.xcds }, (_, x) => swatch(fills[x % fills.length], `XCD ${x}`)),
      turn: () => [swatch(first, "launched first"), swatch(last, "last")],
      round: () => [swatch(fills[0], "waves 1, 3, …"), swatch(fills[1], "waves 2, 4, …")] }[view.mode];
    grid.key.replaceChildren(...(entries?.() ?? []));
  };

  const fit = () => grids.forEach((grid) => {
    grid.fit(grid.box.parentElement.clientWidth - 28);
    grid.showTrail(grid.reached > 0 && grid.reached < grid.order.length ? grid.reached : 0);
  });
  const show = (upTo) => {
    shown = Math.max(0, Math.min(count, upTo));
    grids.forEach((grid) => grid.show(shown));
    slider.value = String(shown);
    slider.setAttribute("aria-valuetext", `${shown} of ${plural(count, "tile")}`);
    const grid = grids[0], cell = grid && grid.reached > 0 ? grid.order[grid.reached - 1] : -1;
    const round = grid && cell >= 0 && grid.lastRound > 0 ? `, wave ${grid.tiles.cells.round[cell] + 1} of ${grid.lastRound + 1}` : "";
    now.textContent = `${shown} of ${plural(count, "tile")} launched${round}`;
  };
  const remember = () => { view.turn = shown === count ? "" : String(shown); writeAddress(); };

  const stop = () => {
    if (timer === null) return;
    cancelAnimationFrame(timer);
    clearTimeout(timer);
    timer = null;
    play.textContent = "▶ Play";
    play.setAttribute("aria-label", "Play");
    remember();
  };
  // A launch lasts as long as is chosen, whatever its size. Whoever wants less motion sees ten pictures of it.
  const start = () => {
    if (!count) return;
    if (shown >= count) show(0);
    play.textContent = "⏸ Pause";
    play.setAttribute("aria-label", "Pause");
    const seconds = Number(byId("lasts").value), calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const from = shown, begun = performance.now();
    const frame = () => {
      const part = (performance.now() - begun) / 1000 / seconds;
      const to = from + count * (calm ? Math.floor(part * 10) / 10 : part);
      if (Math.floor(to) !== shown) show(Math.floor(to));
      if (shown >= count) { stop(); return; }
      timer = calm ? setTimeout(frame, 100 * seconds) : requestAnimationFrame(frame);
    };
    timer = calm ? setTimeout(frame, 100 * seconds) : requestAnimationFrame(frame);
  };
  const go = (upTo) => { stop(); show(upTo); remember(); };
  play.addEventListener("click", () => (timer === null ? start() : stop()));
  byId("first").addEventListener("click", () => go(0));
  byId("back").addEventListener("click", () => go(shown - 1));
  byId("step").addEventListener("click", () => go(shown >= count ? 1 : shown + 1));
  slider.addEventListener("input", () => go(Number(slider.value)));
  byId("mode").addEventListener("change", () => { view.mode = byId("mode").value; view.turn = shown === count ? "" : String(shown); writeAddress(); if (launch) showTiles(); });

  const describe = (grid, cell) => {
    const cells = grid.tiles.cells, every = grid.tiles.every;
    const row = Math.floor(cell / grid.cols) * every, col = (cell % grid.cols) * every;
    if (grid.run === null) {
      const [one, two] = launch.runs.map((run) => run.tiles.cells[view.mode][cell]);
      return `tile (${row}, ${col})\n${WORDS[view.mode]}: ${bytes(one)} and ${bytes(two)}`;
    }
    const turn = cells.turn[cell], launched = grid.run.launched;
    return `tile (${row}, ${col})\nworkgroup ${turn % launched} · XCD ${cells.xcd[cell]} · wave ${cells.round[cell] + 1}`
      + (cells.asked ? `\nrequests ${bytes(cells.asked[cell])}, ${bytes(cells.missed[cell])} not in L2, ${bytes(cells.hbm[cell])} from HBM` : "");
  };
  const look = (grid, cell, x, y) => {
    if (grid) { grid.looked = cell >= 0 ? cell : undefined; grid.showTrail(grid.reached < grid.order.length ? grid.reached : 0); }
    hint.hidden = !grid || cell < 0;
    if (hint.hidden) return;
    hint.textContent = describe(grid, cell);
    const box = hint.getBoundingClientRect();
    hint.style.left = `${Math.max(4, Math.min(x + 16, innerWidth - box.width - 8))}px`;
    hint.style.top = `${y + 20 + box.height > innerHeight ? Math.max(4, y - box.height - 14) : y + 20}px`;
  };
  const listen = (grid) => {
    grid.cells.addEventListener("pointermove", (event) => look(grid, grid.cellAt(event), event.clientX, event.clientY));
    grid.cells.addEventListener("pointerleave", () => look(grid, -1));
    grid.cells.addEventListener("blur", () => look(grid, -1));
    grid.cells.addEventListener("keydown", (event) => {
      const move = { ArrowUp: -grid.cols, ArrowDown: grid.cols, ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      const from = grid.looked ?? 0, to = grid.looked === undefined ? 0 : from + move;
      const wraps = Math.abs(move) === 1 && Math.floor(to / grid.cols) !== Math.floor(from / grid.cols);
      const cell = to < 0 || to >= grid.rows * grid.cols || wraps || grid.tiles.cells.turn[to] < 0 ? from : to;
      const box = grid.cells.getBoundingClientRect(), side = box.width / grid.cols;
      look(grid, cell, box.left + (cell % grid.cols + 1) * side, box.top + (Math.floor(cell / grid.cols) + 1) * side);
      byId("said").textContent = hint.textContent;
    });
  };

  // ---- time and traffic ---------------------------------------------------------------------------------------------
  const table = (head, rows) => {
    const element = make("table"), top = make("tr"), body = make("tbody");
    top.append(...head.map((name) => make("th", name, { scope: "col" })));
    for (const row of rows) {
      const line = make("tr");
      line.append(make("th", row[0], { scope: "row" }), ...row.slice(1).map((cell) => make("td", cell)));
      body.append(line);
    }
    const thead = make("thead");
    thead.append(top);
    element.append(thead, body);
    const box = make("div", "", { class: "scroll" });
    box.append(element);
    return box;
  };
  const figure = (svg) => { const element = make("figure"); element.innerHTML = svg; return element; };

  const showTraffic = () => {
    const names = launch.runs.map((run) => run.mapping);
    const rows = launch.difference.map((row) => [row.name, row.first, row.second, row.difference]);
    const parts = rows.length ? [table(["", ...names, "difference"], rows), make("p", `${names[1]}: ${launch.said}`)] : [];
    byId("difference").replaceChildren(...parts);
    byId("figures").replaceChildren(...launch.figures.map(figure));
    byId("articles").replaceChildren(...launch.runs.map((run) => {
      const article = make("article"), title = make("h2");
      title.append(make("code", run.mapping));
      article.append(title, ...run.warnings.map((words) => make("p", words, { class: "warning" })));
      article.append(...run.said.map((words) => make("p", words)));
      article.append(table(["level", "asked", "hit", "passed on"], run.levels.map((l) => [l.name, l.asked, l.hit, l.passed])));
      article.append(make("p", launch.note, { class: "note" }), ...run.figures.map(figure));
      return article;
    }));
  };

  // ---- passes -------------------------------------------------------------------------------------------------------
  const KINDS = { "+": "added", "-": "removed", "@": "hunk" };
  const showPasses = (answer) => {
    const steps = answer.steps;
    const buttons = steps.map((step) => {
      const lines = step.diff.split("\n");
      const [more, less] = ["+", "-"].map((sign) => lines.filter((line) => line.startsWith(sign)).length);
      const button = make("button", "", { type: "button", class: step.changed ? "" : "unchanged" });
      button.append(make("span", step.pass), make("span", step.changed ? `+${more} −${less}` : "unchanged", { class: "count" }));
      const item = make("li");
      item.append(button);
      button.addEventListener("click", () => choose(step, button));
      return { item, button, step };
    });
    const choose = (step, button) => {
      buttons.forEach((b) => b.button.setAttribute("aria-current", String(b.button === button)));
      view.pass = step.pass;
      writeAddress();
      byId("step-name").textContent = step.pass;
      byId("step-decision").textContent = `${step.decision} · ${(1e3 * step.seconds).toFixed(1)} ms · for ${answer.target}`;
      byId("remarks").replaceChildren(...step.remarks.map((row) =>
        make("p", `remark${row.line ? ` at ${row.line}` : ""}: ${row.what}${row.remedy ? `; ${row.remedy}` : ""}`, { class: "warning" })));
      const lines = step.changed ? step.diff.split("\n") : ["(unchanged)"];
      byId("diff").replaceChildren(...lines.map((line) => make("span", line, { class: step.changed ? KINDS[line[0]] ?? "" : "" })));
      byId("diff").scrollTop = 0;
    };
    byId("steps").replaceChildren(...buttons.map((b) => b.item));
    const wish = buttons.find((b) => b.step.pass === view.pass) ?? buttons.find((b) => b.step.changed) ?? buttons[0];
    if (wish) choose(wish.step, wish.button);
  };
  byId("steps").addEventListener("keydown", (event) => {
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const buttons = all("button", byId("steps")), next = buttons[buttons.indexOf(document.activeElement) + move];
    if (next) { next.focus(); next.click(); }
  });

  // ---- assembly -----------------------------------------------------------------------------------------------------
  const cyclesOf = (found) => {  // of the K loop, where the target has a model of its compute unit
    if (!found?.by_latency) return [];
    const number = (value) => Math.round(value).toLocaleString("en");
    const each = (words, value) => [words, ...found.by_latency.map(value)];
    const details = make("details"), summary = make("summary", `Cycles of the K loop: a compute unit with ${plural(found.workgroups, "workgroup")} of ${plural(found.waves, "wave")}`);
    const middle = found.by_latency[Math.floor(found.by_latency.length / 2)];
    details.append(
      summary,
      table(each("Latency of global loads, cycles", (at) => number(at.latency_cycles)), [
        each("cycles per iteration", (at) => number(at.cycles)),
        each("of these the matrix units multiply", () => number(found.matrix_cycles)),
        each("utilization", (at) => `${(100 * at.utilization).toFixed(1)} %`),
      ]),
      table([`Stall, at a latency of ${number(middle.latency_cycles)}`, "Line", "Instruction", "Cycles"],
        middle.stalls.slice(0, 6).map((stall) => [stall.reason, stall.place, stall.instruction, number(stall.cycles)])),
      ...found.notes.map((note) => make("p", `${note}.`)),
    );
    return [details];
  };
  const showCode = (answer) => {
    const counts = new Map();
    for (const [, line] of answer.lines) if (line) counts.set(line, (counts.get(line) ?? 0) + 1);
    const facts = Object.entries({ ...answer.figures, ...answer.loop }).filter(([key, value]) =>
      !["remarks", "machine", "not_as_asked", "kernel", "chip"].includes(key) && typeof value !== "object" || ["waves", "tma_loads", "tma_stores", "wgmma"].includes(key));
    const details = make("details"), summary = make("summary", `Resources on ${answer.target}`);
    details.append(summary, table(["", ""], facts.map(([key, value]) => [key.replaceAll("_", " "), String(value)])));
    byId("figures-of-code").replaceChildren(details, ...cyclesOf(answer.cycles));
    byId("source-name").textContent = answer.file || "No lines: this target's assembly does not name them";
    byId("source").replaceChildren(...Object.entries(answer.source).map(([number, text]) => {
      const button = make("button", "", { type: "button", "data-line": number });
      button.append(make("span", number, { class: "number" }), make("span", text, { class: "text" }), make("span", counts.get(Number(number)) ?? "", { class: "count" }));
      button.addEventListener("click", () => mean(Number(number), "source"));
      const item = make("li");
      item.append(button);
      return item;
    }));
    const fragment = document.createDocumentFragment();
    for (const [text, line] of answer.lines) fragment.append(make("span", text, { "data-line": line, "data-shown": line || "" }));
    byId("assembly").replaceChildren(fragment);
    if (view.line) mean(Number(view.line), "source");
  };
  const mean = (line, from) => {
    view.line = String(line);
    writeAddress();
    all(".meant", byId("code")).forEach((e) => e.classList.remove("meant"));
    const found = line ? all(`[data-line="${line}"]`, byId("code")) : [];
    found.forEach((e) => e.classList.add("meant"));
    const other = found.find((e) => e.closest(from === "source" ? "#assembly" : "#source"));
    const box = other?.closest("#assembly, #source");  // the list scrolls, and not the page around it
    if (box) box.scrollTop += other.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 2;
  };
  byId("assembly").addEventListener("click", (event) => {
    const line = Number(event.target.closest("span")?.dataset.line);
    if (line) mean(line, "assembly");
  });

  // ---- keys, colours, sharing ---------------------------------------------------------------------------------------
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select, button, pre") || event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = { " ": () => play.click(), ".": () => byId("step").click(), ",": () => byId("back").click(),
      Home: () => byId("first").click(), Escape: () => look(null, -1) };
    if (view.tab === "tiles" && keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const dress = () => {
    root.dataset.theme = ["dark", "light"].includes(view.theme) ? view.theme : dark.matches ? "dark" : "light";
    if (grids.length) fit();
  };
  byId("theme").addEventListener("click", () => { view.theme = root.dataset.theme === "dark" ? "light" : "dark"; dress(); writeAddress(); });
  dark.addEventListener("change", dress);
  byId("share").addEventListener("click", async () => {
    writeAddress();
    try { await navigator.clipboard.writeText(location.href); byId("said").textContent = byId("share").textContent = "Copied"; }
    catch { byId("share").textContent = "Copy it from the address bar"; }
    setTimeout(() => (byId("share").textContent = "Copy link"), 2000);
  });
  let room = 0;
  new ResizeObserver(() => { if (byId("grids").clientWidth !== room) { room = byId("grids").clientWidth; fit(); } }).observe(byId("grids"));
  const begin = () => { readAddress(); showChosen(); dress(); open(view.tab); };
  window.addEventListener("hashchange", begin);
  fillForm();
  begin();
})();
