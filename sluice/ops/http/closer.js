"use strict";
// What is read only when somebody asks: dead letters, the ledger's history. It needs a token, which stays in this page.
// Everything that comes from outside becomes text, never HTML.

function asked(names) {
  const words = new URLSearchParams();
  for (const name of names) if (tools[name].value.trim()) words.set(name, tools[name].value.trim());
  return words;
}

function shownTime(ms) {
  return ms ? new Date(ms).toISOString().replace(/\.\d+Z$/, "Z") : "–";
}

function letters(told) {
  const groups = told.counts.map((each) => {
    const samples = told.dead_letters.filter((one) => one.connector === each.connector && one.table === each.table && one.reason === each.reason);
    const of = { connector: each.connector, table: each.table, reason: each.reason };
    const button = element("button", { type: "button" }, `Replay ${each.reason} of ${each.table || "no table"} …`);
    button.addEventListener("click", () => openDialog("dead-letters/replay", { ...of, ...place() }, button.textContent.replace(" …", ""), "Replay them"));
    return element("article", {},
      element("h3", {}, `${each.reason}, ${each.table || "no table"}`),
      element("p", { class: "reason" }, `${count(each.dead_letters)} dead letters, ${count(each.waiting)} of them not replayed; the last of ${shownTime(each.last_ms)}`),
      samples.length ? element("p", { class: "facts" }, samples[0].advice.split(" sluice dead-letters")[0]) : null,
      samples.length ? grid([["from"], ["at"], ["why"], ["sample"], ["replayed"]], samples.map((one) => [
        `${one.topic}[${one.partition}] ${one.offset}`, shownTime(one.at_ms), one.error,
        one.sample === null ? `${count(one.bytes)} bytes, not shown: [dead_letters] mask` : one.sample,
        one.replayed_at_ms ? `${shownTime(one.replayed_at_ms)} by ${one.replayed_by}` : "no"])) : null,
      each.waiting ? button : null);
  });
  return groups.length ? groups : [element("p", {}, "There are none.")];
}

function place() {
  const where = {};
  if (tools.topic.value.trim()) where.topic = tools.topic.value.trim();
  for (const name of ["partition", "offset"]) if (tools[name].value.trim()) where[name] = Number(tools[name].value);
  return where;
}

function details(entry) {
  if (entry.type === "record") return [entry.why ? `decided: ${entry.why}` : "", `owner ${entry.owner}`];
  if (entry.type === "receipt") return [`${entry.entry} in shard ${entry.shard}`, `${count(entry.rows)} rows`, entry.replica, ...(entry.failed_over ?? []).map((each) => `past ${each}`)];
  if (entry.type === "settled") return [`${count(entry.messages)} messages, ${count(entry.rows)} rows`, `${count(entry.dead_letters)} dead letters`];
  return [entry.by ? `by ${entry.by}: ${entry.why}` : "", ...(entry.steps ?? [])];
}

function historyOf(told) {
  const cut = told.found > told.entries.length ? [element("p", {}, `The last ${told.entries.length} of ${count(told.found)} entries.`)] : [];
  if (!told.entries.length) return [element("p", {}, "The ledger says nothing about it in the last hour.")];
  return [...cut, grid([["time"], ["partition"], ["entry"], ["offsets"], ["details"]], told.entries.map((entry) => [
    shownTime(entry.at_ms), "topic" in entry ? `${entry.topic}[${entry.partition}]` : entry.connector, entry.kind ?? entry.type,
    "begin" in entry ? `[${entry.begin}, ${entry.end})` : "–", details(entry).filter(Boolean).join(", ")]))];
}

async function look(event) {
  event.preventDefault();
  const isHistory = tools.what.value === "history";
  tools.look.disabled = true;
  tools.found.replaceChildren(element("p", {}, "Reading …"));
  try {
    const words = asked(["connector", "table", "topic", "partition", "offset", ...(isHistory ? [] : ["reason"])]);
    words.set("limit", isHistory ? "100" : "50");
    const told = await request(`${tools.what.value}?${words}`);
    const notAll = told.complete ? [] : [element("p", { class: "waits" }, "There was more than could be read in ten seconds: name a partition, or use the command line.")];
    tools.found.replaceChildren(...notAll, ...(isHistory ? historyOf(told) : letters(told)));
  } catch (error) {
    say(tools.found, error);
  }
  tools.look.disabled = false;
  tools.look.focus();
}

tools.closer.addEventListener("submit", look);
