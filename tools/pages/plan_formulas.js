"use strict";
/*
 * plan_formulas.js: the arithmetic of haul plan (lib/plan) for its page. Bytes stay whole numbers: all that the page
 * can ask for is below 2^53. A point is
 *   {params, ranks, ranksPerNode, dtype, gradDtype, master, passes, deviceMem, hostMem, nvmeMem (Infinity: no
 *    bound), layers (0: no shape), hidden, heads, vocab, seq, batch, recompute,
 *    tokens, flops, link, mem, driveRead, driveWrite (per second)}
 */
const OFFLOADS = ["none", "optimizer", "all"];
const DTYPE_BYTES = { bf16: 2, fp16: 2, fp32: 4 };
const WINDOW_BUFFERS = 2, GRADIENT_BUFFERS = 2, RING_SLOTS = 4, PUBLISH_SLOTS = 2, LANDING_SLOTS = 3;

function divUp(a, b) {
  return Math.floor(a / b) + (a % b !== 0 ? 1 : 0);
}

function gradBytes(o) {
  return o.dtype === "fp32" ? 4 : DTYPE_BYTES[o.gradDtype];
}

function recordBytes(o, offload) {
  if (o.dtype === "fp32")
    return offload === "optimizer" ? 12 : 8;
  return o.master === "split" ? 10 : 12;
}

/* Bytes of the model state of one rank, by kind. */
function stateBytes(o, stage, offload) {
  const shard = divUp(o.params, o.ranks);
  const owned = stage === 0 ? o.params : shard;
  const grads = stage <= 1 ? o.params : shard;
  const apart = offload === "optimizer";
  return {
    params: (stage === 3 ? shard : o.params) * DTYPE_BYTES[o.dtype],
    grads: o.passes > 1 ? 0 : grads * gradBytes(o),
    accumulators: o.passes > 1 ? owned * 4 : 0,
    records: owned * recordBytes(o, offload),
    hi: o.dtype === "bf16" && o.master === "split" && apart ? owned * 2 : 0,
  };
}

function blockParams(o) {
  return 12 * o.hidden * o.hidden + 13 * o.hidden;
}

function shapeParams(o) {
  return o.layers * blockParams(o) + (o.vocab + o.seq) * o.hidden + 2 * o.hidden;
}

function activations(o, recompute) {
  const wide = o.dtype === "fp32";
  const tokens = o.seq * o.batch, width = tokens * o.hidden, scores = tokens * o.heads * o.seq;
  const layer = (wide ? 66 : 34) * width + (wide ? 9 : 5) * scores;
  const kept = recompute ? layer + o.layers * (wide ? 4 : 2) * width : o.layers * layer;
  return kept + (wide ? 9 : 5) * width + 4 * tokens * o.vocab;
}

function slotBytes(o, offload, pages) {
  let bytes = RING_SLOTS * pages;
  if (offload === "none")
    return 0;
  if (offload === "optimizer" && o.dtype !== "fp32" && o.master === "fp32")
    bytes += PUBLISH_SLOTS * DTYPE_BYTES[o.dtype];
  return bytes + (o.passes > 1 ? LANDING_SLOTS * gradBytes(o) : 0);
}

/* Beside the model state, per rank. */
function workingSet(o, stage, offload, pages) {
  if (o.layers === 0)
    return { window: 0, gradientWindow: 0, activations: 0, slots: 0 };
  const unit = Math.max(blockParams(o), (o.vocab + o.seq) * o.hidden);
  const shard = stage === 0 ? unit : divUp(unit, o.ranks);
  const whole = offload !== "all" && (stage < 3 || o.ranks === 1);
  const travels = gradBytes(o);
  return {
    window: whole ? 0 : unit * WINDOW_BUFFERS * DTYPE_BYTES[o.dtype],
    gradientWindow: unit * (GRADIENT_BUFFERS * 4 + (travels !== 4 ? travels : 0)),
    activations: activations(o, o.recompute),
    slots: shard * slotBytes(o, offload, pages),
  };
}

/* What the host has no room for goes to nvme: records, then parameters. Slots take room themselves. */
function place(o, stage, offload, state, tiers) {
  const onHost = offload === "none" ? 0 : state.records * o.ranksPerNode;
  const paramsOnHost = offload === "all" ? state.params * o.ranksPerNode : 0;
  const whole = tiers.host;
  for (let pages = 0; ;) {
    tiers.workingSet = workingSet(o, stage, offload, pages);
    const slots = tiers.workingSet.slots * o.ranksPerNode;
    const over = Math.max(0, whole - Math.max(0, o.hostMem - slots));
    tiers.nvmeRecords = Math.min(over, onHost);
    tiers.nvmeParams = Math.min(over - tiers.nvmeRecords, paramsOnHost);
    tiers.host = whole - tiers.nvmeRecords - tiers.nvmeParams;
    const next = (tiers.nvmeRecords > 0 ? recordBytes(o, offload) : 0) +
      (tiers.nvmeParams > 0 ? DTYPE_BYTES[o.dtype] : 0);
    if (next <= pages)
      return;
    pages = next;
  }
}

function planRow(o, stage, offload) {
  const state = stateBytes(o, stage, offload);
  const updates = state.grads + state.accumulators + state.records + state.hi;
  const device = (offload === "all" ? 0 : state.params) + (offload === "none" ? updates : 0);
  const onHost = (offload === "all" ? state.params : 0) + (offload === "none" ? 0 : updates);
  const shard = divUp(o.params, o.ranks);
  const tiers = { host: onHost * o.ranksPerNode };
  place(o, stage, offload, state, tiers);
  const w = tiers.workingSet, nvme = tiers.nvmeRecords + tiers.nvmeParams;
  const needs = [device + w.window + w.gradientWindow + w.activations,
    tiers.host + w.slots * o.ranksPerNode, nvme];
  const budgets = [o.deviceMem, o.hostMem, o.nvmeMem];
  const lacks = needs.map((need, t) => Math.max(0, need - budgets[t]));
  return {
    stage, offload, device, host: tiers.host, nvme, workingSet: w, needs, lacks,
    shortBy: lacks[0] + lacks[1] + lacks[2], fits: lacks.every((l) => l === 0),
    ratio: stage === 3 ? 1.5 : 1,
    nvmeRecords: tiers.nvmeRecords, nvmeParams: tiers.nvmeParams, paramBytes: state.params,
    gradBytes: offload === "none" ? 0 : (stage <= 1 ? o.params : shard) * gradBytes(o),
    updated: offload === "none" ? 0 : (stage === 0 ? o.params : shard) * o.ranksPerNode,
  };
}

/* Stage 0 none, optimizer, all, stage 1 none, ... */
function planRows(o) {
  const rows = [];
  for (let stage = 0; stage < 4; stage++)
    for (const offload of OFFLOADS)
      rows.push(planRow(o, stage, offload));
  return rows;
}

/* Least offload; no nvme; least traffic; least off the device; lowest stage. */
function recommend(rows) {
  const keys = (r) => [OFFLOADS.indexOf(r.offload), r.nvme > 0 ? 1 : 0, r.ratio, r.host + r.nvme, r.stage];
  let best = -1;
  rows.forEach((row, i) => {
    if (!row.fits)
      return;
    const a = keys(row), b = best < 0 ? null : keys(rows[best]);
    const differs = b === null ? 0 : a.findIndex((value, k) => value !== b[k]);
    if (b === null || (differs >= 0 && a[differs] < b[differs]))
      best = i;
  });
  return best;
}

/* Seconds that a step cannot be faster than. */
function bounds(o, row) {
  const pass = o.params * o.tokens / (o.ranks * o.flops);
  const param = DTYPE_BYTES[o.dtype], grad = gradBytes(o);
  const published = o.dtype !== "fp32" && o.master === "fp32" ? param : 0;
  const up = row.offload === "optimizer" ? row.updated / o.ranksPerNode * param
    : row.offload === "all" ? 2 * row.paramBytes * o.passes : 0;
  const b = {
    forward: 2 * pass, backward: (o.recompute ? 6 : 4) * pass, h2d: up / o.link,
    d2h: row.gradBytes * o.passes / o.link, optim: row.updated * (grad + 24) / o.mem,
    hostMemory: row.updated * (grad + 24 + published + grad + param) / o.mem,
    nvme: (row.nvmeRecords + 2 * row.nvmeParams) / o.driveRead +
      (row.nvmeRecords + row.nvmeParams) / o.driveWrite,
  };
  const hidden = [["compute", b.forward], ["optimizer", b.optim], ["nvme", b.nvme]];
  const first = hidden.reduce((a, c) => (c[1] > a[1] ? c : a));
  b.by = first[0];
  b.step = first[1] + b.backward;
  for (const [by, seconds] of [["h2d", b.h2d], ["d2h", b.d2h], ["host memory", b.hostMemory]])
    if (seconds > b.step) {
      b.step = seconds;
      b.by = by;
    }
  return b;
}
