"use strict";
// Everything that comes from outside becomes text, never HTML.

const EVERY_MS = 2000;
// Of replicas that are not well, so many are told before the list of all.
const TOLD_MAX = 5;
const opened = new Set();
let answeredAt = 0;

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function count(number) {
  return number === null ? "–" : Math.round(number).toLocaleString("en");
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

function ago(ms, now) {
  return ms === null ? "not since the start" : `${duration(Math.max(0, now - ms) / 1000)} ago`;
}

function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== "");
  return element("dl", {}, ...shown.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

function head(level, name, verdict) {
  const shown = element("span", { class: `verdict ${verdict}` }, verdict);
  return element("div", { class: "head" }, element(level, {}, name), shown);
}

function amounts(of, rows, rate, now) {
  const doubt = of.in_doubt ? `${count(of.in_doubt)}, the oldest ${duration(of.oldest_intent_seconds)}` : "none";
  return [
    ["lag in messages", count(of.lag_messages)],
    ["behind", duration(of.behind_seconds)],
    ["rows a second", count(rate)],
    ["rows since the start", count(rows)],
    ["last settled", ago(of.last_settled_ms, now)],
    ["ranges in doubt", doubt],
    ["partitions", Object.entries(of.partitions).map(([verdict, n]) => `${count(n)} ${verdict}`).join(", ")],
  ];
}

function folded(key, title, make) {
  const details = element("details", {}, element("summary", {}, title));
  details.open = opened.has(key);
  details.dataset.key = key;
  if (details.open) details.append(make());
  details.addEventListener("toggle", () => {
    if (details.open) opened.add(key); else opened.delete(key);
    if (details.open && details.children.length === 1) details.append(make());
  });
  return details;
}

function grid(columns, rows) {
  const cell = (tag, value, index) =>
    element(tag, columns[index][1] ? { class: "number" } : {}, value);
  return element("div", { class: "scroll", tabindex: "0" }, element("table", {},
    element("thead", {}, element("tr", {}, ...columns.map(([name], index) => cell("th", name, index)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((value, index) => cell("td", value, index)))))));
}

function table(of, connector, now) {
  const letters = Object.entries(of.dead_letters).map(([reason, n]) => `${count(n)} ${reason}`).join(", ");
  const least = of.windows.length ? Math.min(...of.windows.map((window) => window.left)) : null;
  return element("article", {},
    head("h3", `${of.name} → ${of.target}`, of.verdict),
    element("p", { class: "reason" }, of.reason),
    ...of.frozen.filter((line) => line !== of.reason).map((line) => element("p", { class: "frozen" }, line)),
    facts([
      ...amounts(of.amounts, of.rows, of.rows_per_second, now),
      ["dead letters", letters || "none"],
      ["parked", of.is_parked ? "yes" : null],
      ["window left", least === null ? null : `${Math.round(least * 100)} %`],
    ]),
    of.windows.length > 1 ? folded(`${connector}/${of.name}/windows`, `${of.windows.length} deduplication windows`, () =>
      grid([["shard"], ["table"], ["left", true]],
        of.windows.map((window) => [window.shard, window.table, `${Math.round(window.left * 100)} %`]))) : null);
}

function replicas(of) {
  const blocks = (each) => each.frozen ? `none: ${each.frozen}` : each.why_last ? `last: ${each.why_last}` : "in turn";
  return grid([["shard"], ["replica"], ["answers"], ["delay", true], ["queue", true], ["blocks go to it"]],
    of.replicas.map((each) => [each.shard, each.url, each.answers ? "yes" : "no", duration(each.delay_seconds),
      count(each.queue), blocks(each)]));
}

function troubled(of) {
  return grid([["partition"], ["verdict"], ["lag", true], ["intent"], ["age", true], ["reason"]],
    of.troubled.map((each) => [`${each.topic}[${each.partition}]`, each.verdict, count(each.lag_messages),
      each.intent ? `[${each.intent[0]}, ${each.intent[1]})` : "–", duration(each.intent_age_seconds), each.reason]));
}

function troubledTitle(of) {
  const { loading = 0, idle = 0, ...others } = of.amounts.partitions;
  const all = Object.values(others).reduce((sum, n) => sum + n, 0);
  const first = all > of.troubled.length ? `, the first ${of.troubled.length} of them` : "";
  return `${count(all)} partitions that neither load nor are idle${first}`;
}

function connector(of, now) {
  const away = of.replicas.filter((each) => each.why_last || !each.answers);
  const frozen = of.replicas.filter((each) => each.frozen);
  const lines = new Set(frozen.map((each) => each.frozen).filter((line) => line !== of.reason));
  return element("section", {},
    head("h2", of.name, of.verdict),
    element("p", { class: "reason" }, of.reason),
    ...[...lines, ...of.settings].map((line) => element("p", { class: "reason frozen" }, line)),
    ...of.refused.map((line) => element("p", { class: "reason stopped" }, line)),
    ...away.slice(0, TOLD_MAX).map((each) => element("p", { class: "reason waits" },
      `replica ${each.url} of ${each.shard}: ${each.why_last || "it does not answer"}`)),
    of.applied ? facts([
      ["loads by", `version ${of.applied.number}, applied by ${of.applied.by}`],
      ["applied", ago(of.applied.at_ms, now)],
      ["because", of.applied.why],
    ]) : null,
    of.applied && of.applied.file_differs ? element("p", { class: "reason waits" },
      "the driver's file has other tables or topics, or cannot be used: it is not applied") : null,
    of.fleet ? facts([
      ["members", of.fleet.members.join(", ") || "none yet"],
      ["silent members", of.fleet.silent.join(", ") || "none"],
      ["partitions without an owner", of.fleet.unowned_partitions],
      ["looked at all partitions, ago", duration(of.fleet.look_age_seconds)],
      ["own report, ago", duration(of.fleet.report_age_seconds)],
    ]) : null,
    of.tables.length ? facts(amounts(of.amounts, of.rows, of.rows_per_second, now)) : null,
    of.replicas.length ? folded(`${of.name}/replicas`,
      `${of.replicas.length} replicas${away.length ? `, ${away.length} of them tried last or silent` : ""}${frozen.length ? `, ${frozen.length} frozen` : ""}`, () => replicas(of)) : null,
    of.troubled.length ? folded(`${of.name}/troubled`, troubledTitle(of), () => troubled(of)) : null,
    ...of.tables.map((each) => table(each, of.name, now)));
}

function proof(of, now) {
  return element("section", {},
    head("h2", of.what === "audit" ? "continuous audit" : "continuous verification", of.verdict),
    element("p", { class: "reason" }, of.reason),
    facts([
      ["looks", `${count(of.turns)}, one each ${duration(of.every_seconds)}`],
      ["failed looks", count(of.failures)],
      ["last end", ago(of.ended_ms, now)],
      [of.what === "audit" ? "offsets compared" : "entries judged", count(of.covered)],
      ["left out", of.what === "audit" ? count(of.left_out) : null],
    ]));
}

function show(status) {
  document.getElementById("pipeline").textContent = status.pipeline;
  const told = [...status.connectors, ...status.proof.filter((each) => each.verdict !== "ok")];
  document.title = `${told.map((each) => each.verdict).join(", ")} · ${status.pipeline}`;
  const place = document.getElementById("connectors");
  const focused = document.activeElement?.closest?.("details")?.dataset.key;
  place.replaceChildren(...status.connectors.map((each) => connector(each, status.at_ms)),
    ...status.proof.map((each) => proof(each, status.at_ms)));
  if (focused) {
    const again = [...place.querySelectorAll("details")].find((each) => each.dataset.key === focused);
    again?.querySelector("summary").focus();
  }
}

async function refresh() {
  const state = document.getElementById("state");
  try {
    const answer = await fetch("status", { signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    show(await answer.json());
    answeredAt = Date.now();
    state.classList.remove("lost");
    state.textContent = `As of ${new Date(answeredAt).toLocaleTimeString()}; new every two seconds.`;
  } catch (error) {
    const since = answeredAt ? `since ${new Date(answeredAt).toLocaleTimeString()}` : "yet";
    state.classList.add("lost");
    state.textContent = `The driver has not answered ${since}: what is below is old. ${error.message}`;
  }
  setTimeout(refresh, document.hidden ? 5 * EVERY_MS : EVERY_MS);
}

refresh();
