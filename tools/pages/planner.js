"use strict";
/* planner.js: the planner's controls and what they show. START, a point of plan_formulas.js, comes before it. */
const point = { ...START };
let stage = -1, offload = "";

/* Sliders move along a logarithm, in steps of three digits; budgets end in "unlimited". */
const SLIDERS = [
  ["params", "Parameters", 1e8, 2e12, "count", "--params"],
  ["ranks", "Ranks", 1, 1024, "whole", "--ranks"],
  ["ranksPerNode", "Ranks on a node", 1, 16, "whole", "--ranks-per-node"],
  ["deviceMem", "Memory of a device", 4e9, 4e11, "budget", "--device-mem"],
  ["hostMem", "Host memory of a node", 8e9, 8e12, "budget", "--host-mem"],
  ["nvmeMem", "NVMe of a node", 1e11, 1e14, "budget", "--nvme-mem"],
  ["tokens", "Tokens of a step", 1e3, 1e8, "count", "--tokens"],
  ["flops", "TFLOP/s of a device", 1e12, 2e15, "tera", "--tflops"],
  ["link", "GB/s of a link", 1e9, 2e11, "giga", "--link-gbps"],
  ["mem", "GB/s of host memory", 1e10, 2e12, "giga", "--mem-gbps"],
  ["drive", "GB/s of the drives", 5e8, 2e11, "giga", "--drive-gbps"],
];
const CHOICES = [
  ["stage", "Stage", ["recommended", "0", "1", "2", "3"]],
  ["offload", "Offload", ["recommended", "none", "optimizer", "all"]],
  ["dtype", "Parameters in", ["bf16", "fp16", "fp32"]],
  ["master", "Records", ["fp32", "split"]],
];
const STEPS = 1000;

function digits(value) {
  return Number(value.toPrecision(4)).toString();
}

function withUnit(value, units) {
  for (const [from, unit] of units)
    if (value >= from)
      return digits(value / from) + unit;
  return digits(value);
}

function size(bytes) {
  return withUnit(bytes, [[1e12, " TB"], [1e9, " GB"], [1e6, " MB"], [1e3, " KB"], [1, " B"]]);
}

function shown(kind, value) {
  if (value === Infinity)
    return "unlimited";
  if (kind === "budget")
    return size(value);
  if (kind === "tera" || kind === "giga")
    return digits(value / (kind === "tera" ? 1e12 : 1e9));
  return kind === "whole" ? String(value) : withUnit(value, [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]]);
}

function valueAt(slider, at) {
  const [, , low, high, kind] = slider;
  if (kind === "budget" && at >= STEPS)
    return Infinity;
  const value = low * Math.pow(high / low, at / STEPS);
  return kind === "whole" ? Math.round(value) : Number(value.toPrecision(3));
}

function placeOf(slider, value) {
  const [, , low, high] = slider;
  if (value === Infinity)
    return STEPS;
  return Math.min(STEPS, Math.max(0, Math.round(STEPS * Math.log(value / low) / Math.log(high / low))));
}

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes))
    made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function setValue(name, value) {
  if (name === "drive")
    point.driveRead = point.driveWrite = value;
  else
    point[name] = value;
  point.ranksPerNode = Math.min(point.ranksPerNode, point.ranks);
}

function sliderControl(slider) {
  const [name, label, , , kind] = slider;
  const start = name === "drive" ? point.driveRead : point[name];
  const output = element("output", { for: "c-" + name }, shown(kind, start));
  const input = element("input", { type: "range", id: "c-" + name, min: 0, max: STEPS, value: placeOf(slider, start),
    "aria-valuetext": shown(kind, start) });
  input.addEventListener("input", () => {
    const value = valueAt(slider, Number(input.value));
    setValue(name, value);
    output.textContent = shown(kind, value);
    input.setAttribute("aria-valuetext", shown(kind, value));
    show();
  });
  return element("div", { class: "control" }, element("label", { for: "c-" + name }, label), output, input);
}

function choiceControl([name, label, words]) {
  const select = element("select", { id: "c-" + name }, ...words.map((w) => element("option", {}, w)));
  if (name === "dtype" || name === "master")
    select.value = point[name];
  select.addEventListener("change", () => {
    if (name === "stage")
      stage = select.value === "recommended" ? -1 : Number(select.value);
    else if (name === "offload")
      offload = select.value === "recommended" ? "" : select.value;
    else
      point[name] = select.value;
    if (name === "dtype")
      point.gradDtype = point.dtype;
    if (point.dtype !== "bf16")
      point.master = document.getElementById("c-master").value = "fp32";
    show();
  });
  return element("div", { class: "control" }, element("label", { for: "c-" + name }, label), select);
}

/* What was asked for, else the recommended row, else the one that lacks least. */
function choose(rows) {
  const asked = rows.filter((r) => (stage < 0 || r.stage === stage) && (offload === "" || r.offload === offload));
  const best = recommend(asked);
  return best >= 0 ? asked[best] : asked.reduce((a, b) => (b.shortBy < a.shortBy ? b : a));
}

function bar(tier, need, budget) {
  const whole = budget === Infinity ? need : Math.max(need, budget);
  const part = whole > 0 ? 100 * need / whole : 0, frame = budget === Infinity ? 100 : 100 * budget / whole;
  const fits = need <= budget;
  const text = tier + ": " + size(need) + (budget === Infinity ? "" : " of " + size(budget)) + (fits ? "" : ", too little");
  const track = element("div", { class: "track" }, element("div", { class: "frame", style: "width:" + frame + "%" }),
    element("div", { class: "fill", style: "width:" + part + "%;background:var(--" + tier.split(" ")[0] + ")" }));
  return element("div", { class: "tier" }, element("div", { class: fits ? "" : "bad" }, text), track);
}

function cells(texts, words) {
  return texts.map((text, i) => element("td", words.includes(i) ? { class: "words" } : {}, text));
}

function showRows(rows, chosen) {
  const tiers = ["device", "host", "nvme"];
  document.getElementById("rows").replaceChildren(...rows.map((r) => {
    const lacks = r.lacks.map((l, t) => (l > 0 ? tiers[t] + " " + size(l) : "")).filter((t) => t).join(", ");
    const verdict = (r.fits ? "fits" : "short: " + lacks) + (r === chosen ? ", shown above" : "");
    return element("tr", {}, ...cells([String(r.stage), r.offload, size(r.device), size(r.host), size(r.nvme),
      r.ratio + " x", verdict], [1, 6]));
  }));
}

function showBounds(b) {
  const parts = [["forward", b.forward], ["backward", b.backward], ["h2d", b.h2d], ["d2h", b.d2h],
    ["optimizer", b.optim], ["host memory", b.hostMemory], ["nvme", b.nvme]];
  document.getElementById("bounds").replaceChildren(...parts.map(([name, seconds]) =>
    element("tr", {}, ...cells([name, digits(seconds)], []))));
}

function command() {
  const words = ["haul plan"].concat(point.profile === null ? [] : ["--profile " + point.profile]);
  for (const [name, , , , kind, flag] of SLIDERS) {
    const value = name === "drive" ? point.driveRead : point[name];
    const fromProfile = name === "drive" && point.driveRead !== point.driveWrite;
    if (value !== Infinity && !fromProfile)
      words.push(flag + " " + (kind === "tera" || kind === "giga" ? shown(kind, value) : String(value)));
  }
  words.push("--dtype " + point.dtype, "--grad-dtype " + point.gradDtype, "--master " + point.master);
  if (point.passes > 1)
    words.push("--passes " + point.passes);
  if (!point.recompute)
    words.push("--no-recompute");
  if (point.layers > 0)
    for (const name of ["layers", "hidden", "heads", "vocab", "seq", "batch"])
      words.push("--" + name + " " + point[name]);
  return words.join(" ");
}

function show() {
  const rows = planRows(point), chosen = choose(rows), b = bounds(point, chosen);
  const verdict = document.getElementById("verdict");
  verdict.textContent = "Stage " + chosen.stage + ", offload " + chosen.offload + ": " +
    (chosen.fits ? "fits." : "does not fit; short by " + size(chosen.shortBy) + ".");
  verdict.className = chosen.fits ? "good" : "bad";
  document.getElementById("step").textContent = "A step takes at least " + digits(b.step) + " s (" +
    digits(point.tokens / b.step) + " tokens/s at most), bound by " + b.by + ".";
  document.getElementById("bars").replaceChildren(bar("device of a rank", chosen.needs[0], point.deviceMem),
    bar("host of a node", chosen.needs[1], point.hostMem), bar("nvme of a node", chosen.needs[2], point.nvmeMem));
  showBounds(b);
  showRows(rows, chosen);
  document.getElementById("command").textContent = command();
}

document.getElementById("controls").append(...CHOICES.map(choiceControl), ...SLIDERS.map(sliderControl));
show();
