"use strict";
// A grid of tiles. Every tile is one pixel of a small canvas that the browser enlarges without smoothing, so a frame
// repaints only the tiles that changed, however many there are. Lines between waves and the trail lie on canvases above.
const LESS = [43, 108, 176], MORE = [192, 86, 33], SAME = [128, 136, 145];
const LATER = 36;  // of 255: how much of a tile shows that is not yet launched
const TRAIL = 48;

const rgb = (hex) => [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
const mix = (a, b, part) => a.map((value, at) => Math.round(value + (b[at] - value) * part));
const onRamp = (ramp, part) => {
  const at = Math.min(Math.max(part, 0), 1) * (ramp.length - 1), low = Math.min(Math.floor(at), ramp.length - 2);
  return mix(ramp[low], ramp[low + 1], at - low);
};
const css = (colour) => `rgb(${colour.join(" ")})`;

class TileGrid {
  constructor(box, tiles, describe) {
    Object.assign(this, { box, tiles, describe });
    this.rows = tiles.drawn_rows;
    this.cols = tiles.drawn_cols;
    this.cells = document.createElement("canvas");
    this.cells.className = "cells";
    this.cells.width = this.cols;
    this.cells.height = this.rows;
    this.cells.tabIndex = 0;
    this.cells.setAttribute("role", "img");
    this.lines = this.over();
    this.trail = this.over();
    box.replaceChildren(this.cells, this.lines, this.trail);
    this.context = this.cells.getContext("2d");
    this.picture = this.context.createImageData(this.cols, this.rows);
    const turn = tiles.cells.turn;
    this.order = Uint32Array.from(turn.keys()).filter((cell) => turn[cell] >= 0).sort((a, b) => turn[a] - turn[b]);
    this.turns = Float64Array.from(this.order, (cell) => turn[cell]);
    this.lastRound = tiles.cells.round.reduce((most, round) => Math.max(most, round), 0);
    this.colours = new Uint8ClampedArray(3 * turn.length);
    this.reached = 0;  // how many of `order` are launched in the picture
  }

  over() {
    const canvas = document.createElement("canvas");
    canvas.className = "over";
    canvas.setAttribute("aria-hidden", "true");
    return canvas;
  }

  // Where a turn stands among the drawn tiles.
  count(upTo) {
    let low = 0, high = this.turns.length;
    while (low < high) { const mid = (low + high) >> 1; if (this.turns[mid] < upTo) low = mid + 1; else high = mid; }
    return low;
  }

  colour(colourOf) {
    this.tiles.cells.turn.forEach((turn, cell) => {
      const found = turn < 0 ? [0, 0, 0] : colourOf(cell);
      this.colours.set(found, 3 * cell);
    });
    this.reached = -1;
  }

  paint(from, to, opacity) {
    const data = this.picture.data;
    for (let at = from; at < to; at++) {
      const cell = this.order[at];
      data.set(this.colours.subarray(3 * cell, 3 * cell + 3), 4 * cell);
      data[4 * cell + 3] = opacity;
    }
  }

  show(upTo) {
    const reached = this.count(upTo);
    if (this.reached < 0) { this.paint(0, reached, 255); this.paint(reached, this.order.length, LATER); }
    else if (reached > this.reached) this.paint(this.reached, reached, 255);
    else this.paint(reached, this.reached, LATER);
    this.reached = reached;
    this.context.putImageData(this.picture, 0, 0);
    this.showTrail(reached < this.order.length ? reached : 0);
  }

  place(cell, side) { return [(cell % this.cols + 0.5) * side, (Math.floor(cell / this.cols) + 0.5) * side]; }

  // The last tiles that were launched, those of each XCD joined.
  showTrail(reached) {
    const pen = this.trail.getContext("2d"), side = this.trail.width / this.cols;
    pen.clearRect(0, 0, this.trail.width, this.trail.height);
    const dark = document.documentElement.dataset.theme === "dark";
    pen.strokeStyle = pen.fillStyle = dark ? "#ffffff" : "#111418";
    pen.lineWidth = Math.max(1, Math.min(2.5, side / 8));
    pen.beginPath();
    const before = new Map(), xcds = this.tiles.cells.xcd;
    for (let at = Math.max(0, reached - TRAIL); at < reached; at++) {
      const cell = this.order[at], place = this.place(cell, side);
      if (before.has(xcds[cell])) { pen.moveTo(...before.get(xcds[cell])); pen.lineTo(...place); }
      before.set(xcds[cell], place);
    }
    pen.stroke();
    for (const cell of [reached ? this.order[reached - 1] : -1, this.looked ?? -1]) {
      if (cell < 0) continue;
      const [x, y] = this.place(cell, side), half = Math.max(side / 2, 3);
      pen.strokeRect(x - half, y - half, 2 * half, 2 * half);
    }
  }

  // Sized to the room it has; lines between tiles where they are large enough, and between waves always.
  fit(width) {
    const scale = window.devicePixelRatio || 1;
    const side = Math.max(1, Math.min(width / this.cols, Math.max(620, window.innerHeight - 340) / this.rows, 46));
    this.box.style.width = `${side * this.cols}px`;
    this.cells.style.width = `${side * this.cols}px`;
    this.cells.style.height = `${side * this.rows}px`;
    for (const canvas of [this.lines, this.trail]) {
      canvas.width = Math.round(side * this.cols * scale);
      canvas.height = Math.round(side * this.rows * scale);
    }
    const pen = this.lines.getContext("2d"), step = this.lines.width / this.cols;
    const styles = getComputedStyle(document.documentElement);
    if (step >= 6) {
      pen.strokeStyle = styles.getPropertyValue("--paper");
      pen.lineWidth = step >= 20 ? 2 : 1;
      pen.beginPath();
      for (let col = 1; col < this.cols; col++) { pen.moveTo(col * step, 0); pen.lineTo(col * step, this.lines.height); }
      for (let row = 1; row < this.rows; row++) { pen.moveTo(0, row * step); pen.lineTo(this.lines.width, row * step); }
      pen.stroke();
    }
    this.showRounds(pen, step, styles);
  }

  showRounds(pen, step, styles) {
    const round = this.tiles.cells.round;
    pen.strokeStyle = styles.getPropertyValue("--ink");
    pen.lineWidth = step >= 6 ? 2 : 1;
    const edges = new Path2D();
    let count = 0;
    const edge = (x, y, to_x, to_y) => { count++; edges.moveTo(x * step, y * step); edges.lineTo(to_x * step, to_y * step); };
    for (let row = 0; row < this.rows; row++) for (let col = 0; col < this.cols; col++) {
      const cell = row * this.cols + col;
      if (col + 1 < this.cols && round[cell] !== round[cell + 1]) edge(col + 1, row, col + 1, row + 1);
      if (row + 1 < this.rows && round[cell] !== round[cell + this.cols]) edge(col, row + 1, col + 1, row + 1);
    }
    this.marked = count > 0 && count < round.length / 2;  // where rounds lie scattered, lines say nothing
    if (this.marked) pen.stroke(edges);
  }

  cellAt(event) {
    const box = this.cells.getBoundingClientRect();
    const col = Math.floor(((event.clientX - box.left) / box.width) * this.cols);
    const row = Math.floor(((event.clientY - box.top) / box.height) * this.rows);
    const inside = row >= 0 && row < this.rows && col >= 0 && col < this.cols;
    const cell = row * this.cols + col;
    return inside && this.tiles.cells.turn[cell] >= 0 ? cell : -1;
  }
}
