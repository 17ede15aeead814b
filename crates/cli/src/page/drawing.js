"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const by = id => document.getElementById(id);
const escape = text => String(text).replace(/[&<>"]/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < 4) { bytes /= 1024; unit += 1; }
  return `${unit === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toPrecision(3)} ${units[unit]}`;
}
function time(seconds) {
  if (seconds >= 1) return `${seconds.toPrecision(4)} s`;
  return seconds >= 1e-3 ? `${(seconds * 1e3).toPrecision(3)} ms` : `${(seconds * 1e6).toPrecision(3)} µs`;
}
const percent = fraction => `${(100 * fraction).toFixed(1)} %`;
const signed = fraction => (fraction >= 0 ? "+" : "−") + percent(Math.abs(fraction));
/* About five round values from 0 or `low` to `high`; bytes get powers of two. */
function ticks(low, high, base) {
  const raw = (high - low) / 5;
  let step = base === 2 ? 2 ** Math.round(Math.log2(raw)) : 10 ** Math.floor(Math.log10(raw));
  if (base === 10) step *= [1, 2, 5, 10].find(f => f * step >= raw);
  const values = [];
  for (let v = Math.ceil(low / step) * step; v <= high; v += step) values.push(v);
  return values;
}

const color = purpose => `var(--p${purpose})`;
const line = (x1, y1, x2, y2, name) => `<line x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}" class="${name}"/>`;
const text = (x, y, words, more = "") => `<text x="${x}" y="${y}" ${more}>${escape(words)}</text>`;

/* Cells break between words and never inside one; what is too wide is scrolled to. */
const words = text => String(text).split(" ").map(word => `<span>${escape(word)}</span>`).join(" ");
function row(cells, tag = "td") { return `<tr>${cells.map(c => `<${tag}>${words(c)}</${tag}>`).join("")}</tr>`; }

/* ---- pointing ---- */
const tip = by("tip");
function showTip(event, head, lines) {
  tip.innerHTML = `<b>${escape(head)}</b>` + lines.map(l => `<span>${escape(l)}</span>`).join("");
  tip.style.display = "block";
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
}
function place(svg, event) { const r = svg.getBoundingClientRect(), v = svg.viewBox.baseVal; return [(event.clientX - r.left) / r.width * v.width, (event.clientY - r.top) / r.height * v.height]; }

/* Sequences of a step, and how they are divided. */
const ranks = plan => plan.ranks ? plan.ranks.count : 1;
const globalBatch = plan => plan.micro_batch * plan.accumulation * ranks(plan);
const effectiveBatch = (plan, tokens) =>
  `effective batch ${globalBatch(plan)} = ${plan.micro_batch} × ${plan.accumulation} × ${ranks(plan)} rank${ranks(plan) === 1 ? "" : "s"}, sequences of ${tokens} tokens`;
