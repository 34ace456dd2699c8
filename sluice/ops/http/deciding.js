"use strict";
// What a person decides, in one dialog: what cannot be taken back is told first, and done with what confirms it.
// Everything that comes from outside becomes text, never HTML.

const tools = Object.fromEntries([...document.querySelectorAll("[id]")].map((each) => [each.id, each]));
// As many as the server takes.
const PARTITIONS_MAX = 1000;
const AT_ONCE = { freeze: "Freeze", resume: "Resume" };
// What is decided, with whether an answer is awaited; and what confirms it once it was told.
let meant = null, confirmation = "";

function say(place, error) {
  place.replaceChildren(element("p", { class: "bad", role: "alert" }, error.message));
}

async function request(path, body) {
  const headers = { Authorization: `Bearer ${tools.token.value.trim()}` };
  const options = body ? { method: "POST", body: JSON.stringify(body), headers: { ...headers, "Content-Type": "application/json" } } : { headers };
  const answer = await fetch(path, options);
  const told = await answer.json().catch(() => ({ error: `status ${answer.status}`, hint: "" }));
  if (!answer.ok) throw new Error(told.hint ? `${told.error}. Try: ${told.hint}` : told.error);
  return told;
}

function wholeNumber(text) {
  const number = Number(text);
  if (!Number.isSafeInteger(number)) throw new Error(`${text} is more than this page can say: use the command line.`);
  return number;
}

function partitions(text) {
  const named = new Set();
  for (const part of text.split(",")) {
    const [first, last = first] = part.split("-").map(wholeNumber);
    if (last - first >= PARTITIONS_MAX || named.size >= PARTITIONS_MAX) throw new Error(`These are more than ${PARTITIONS_MAX} partitions.`);
    if (last < first) throw new Error(`${part.trim()} are no partitions.`);
    for (let number = first; number <= last; number += 1) named.add(number);
  }
  return [...named];
}

const READ = { partitions, offset: wholeNumber, to: (text) => /^[0-9]+$/.test(text) ? wholeNumber(text) : text };

// Only what belongs to the decision is seen, asked for, and sent.
function choose() {
  for (const label of tools.decide.querySelectorAll("[data-for]")) {
    label.hidden = !label.dataset.for.split(" ").includes(tools.decision.value);
    label.lastElementChild.disabled = label.hidden;
  }
}

function decide(event) {
  event.preventDefault();
  tools.undecided.replaceChildren();
  if (!tools.token.reportValidity()) return;
  const path = tools.decision.value;
  try {
    const words = [...new FormData(tools.decide)].map(([name, text]) => [name, text.trim()]).filter(([, text]) => text);
    const about = Object.fromEntries(words.map(([name, text]) => [name, (READ[name] ?? String)(text)]));
    const named = words.map(([name, text]) => `${name.replace("_", " ")} ${text}`).join(", ") || "the whole pipeline";
    openDialog(path, about, `${path}: ${named}`, `${path[0].toUpperCase()}${path.slice(1)}`, AT_ONCE[path]);
  } catch (error) {
    say(tools.undecided, error);
  }
}

function openDialog(path, about, subject, verb, first = "What would be done?") {
  meant = { path, about, verb, first, waits: false };
  tools.subject.textContent = subject;
  tools.why.value = "";
  tools.leave.textContent = "Cancel";
  begin();
  tools.dialog.showModal();
  tools.why.focus();
}

function begin() {
  confirmation = "";
  tools.why.readOnly = false;
  tools.steps.replaceChildren();
  tools.problem.replaceChildren();
  tools.go.textContent = meant.first;
  tools.go.hidden = false;
}

async function go(event) {
  event.preventDefault();
  const asked = meant;
  // Not a disabled button: it would lose the focus, and a key would go nowhere.
  if (asked.waits) return;
  asked.waits = true;
  tools.problem.replaceChildren();
  try {
    const told = await request(asked.path, { ...asked.about, why: tools.why.value, ...(confirmation ? { confirm: confirmation } : {}) });
    // Who left the dialog meanwhile may have begun another decision.
    if (asked !== meant) return;
    const lines = told.planned ?? told.done ?? told.frozen;
    tools.steps.replaceChildren(...(lines.length ? lines : ["Nothing is frozen now."]).map((line) => element("li", {}, line)));
    confirmation = told.confirm ?? "";
    tools.why.readOnly = true;
    tools.go.textContent = meant.verb;
    tools.go.hidden = !told.planned;
    if (!told.planned) tools.leave.textContent = "Close";
  } catch (error) {
    if (asked !== meant) return;
    begin();
    say(tools.problem, error);
  }
  asked.waits = false;
  (tools.go.hidden ? tools.leave : tools.go).focus();
}

tools.decision.addEventListener("change", choose);
tools.decide.addEventListener("submit", decide);
tools.dialog.querySelector("form").addEventListener("submit", go);
tools.leave.addEventListener("click", () => tools.dialog.close());
choose();
