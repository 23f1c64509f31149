// The page for writers: asks the recommender over Connect's JSON and shows answers as they arrive.

const SERVICE = "citewell.recommender.v1.RecommenderService";
const PARTS = [
  ["content", "its own text"],
  ["contexts", "what others said"],
  ["citing", "who cites it"],
  ["words", "the same words"],
];
const $ = (id) => document.getElementById(id);
let files = [];
let running = null;

// ---------------------------------------------------------------- the service

/** One answer, or an Error with the service's words. */
async function call(method, request) {
  const response = await fetch(`/${SERVICE}/${method}`, {
    method: "POST",
    headers: { "content-type": "application/json", "connect-timeout-ms": "60000" },
    body: JSON.stringify(request),
  });
  const told = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(told.message || `the service answered ${response.status}`);
  return told;
}

/** Each answer of a streaming method, as it arrives. */
async function* stream(method, request, signal) {
  const body = new TextEncoder().encode(JSON.stringify(request));
  const framed = new Uint8Array(body.length + 5);
  new DataView(framed.buffer).setUint32(1, body.length);
  framed.set(body, 5);
  const response = await fetch(`/${SERVICE}/${method}`, {
    method: "POST",
    headers: { "content-type": "application/connect+json", "connect-protocol-version": "1", "connect-timeout-ms": "600000" },
    body: framed,
    signal,
  });
  if (!response.ok) throw new Error(`the service answered ${response.status}; try again in a moment`);
  const reader = response.body.getReader();
  let held = new Uint8Array(0);
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the connection broke off before the last answer");
    const joined = new Uint8Array(held.length + value.length);
    joined.set(held);
    joined.set(value, held.length);
    held = joined;
    while (held.length >= 5) {
      const size = new DataView(held.buffer, held.byteOffset).getUint32(1);
      if (held.length < 5 + size) break;
      const message = JSON.parse(new TextDecoder().decode(held.subarray(5, 5 + size)) || "{}");
      const last = held[0] & 2;
      held = held.slice(5 + size);
      if (!last) {
        yield message;
      } else if (message.error) {
        throw new Error(message.error.message || message.error.code);
      } else {
        return;
      }
    }
  }
}

// ---------------------------------------------------------------- the question

function options() {
  const filter = {};
  const [year, month, day] = ($("before").value || "0-0-0").split("-").map(Number);
  if (year) filter.publishedBefore = { year, month, day };
  if ($("from").value) filter.yearFrom = Number($("from").value);
  if ($("to").value) filter.yearTo = Number($("to").value);
  const venues = $("venues").value.split(";").map((name) => name.trim()).filter(Boolean);
  if (venues.length) filter.venues = venues;
  return {
    topK: Number($("top").value) || 5,
    filter,
    rerank: $("rerank").checked,
    asOf: $("known").checked && year ? "AS_OF_KNOWLEDGE" : "AS_OF_FILTER",
    view: "PAPER_VIEW_FULL",
  };
}

async function question() {
  const about = {
    title: $("title").value,
    abstract: $("abstract").value,
    options: options(),
    suggest: $("suggest").checked,
    references: true,
  };
  if (!files.length) return { ...about, text: $("text").value };
  const read = async (file) => ({ name: file.name, content: base64(new Uint8Array(await file.arrayBuffer())) });
  return { ...about, files: await Promise.all(files.map(read)) };
}

function base64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}

async function ask(event) {
  event?.preventDefault();
  running?.abort();
  const mine = (running = new AbortController());
  $("answers").replaceChildren();
  $("problems").hidden = true;
  $("stop").hidden = false;
  say("Reading the draft…");
  let places = 0;
  let answered = 0;
  try {
    const request = await question();
    for await (const told of stream("RecommendManuscript", request, mine.signal)) {
      if (told.outline) {
        places = told.outline.places || 0;
        showProblems(told.outline);
        if (!places) say(nothingFound(request), true);
      } else {
        answered += 1;
        place(told, request);
      }
      if (places) say(`${answered} of ${places} ${places === 1 ? "place" : "places"} answered`);
    }
  } catch (error) {
    if (mine !== running) return;
    const stopped = error.name === "AbortError";
    const gone = error instanceof TypeError ? "the service cannot be reached; is it running?" : error.message;
    say(stopped ? `Stopped; ${answered} of ${places} places answered` : `That did not work: ${gone}`, !stopped);
  } finally {
    if (mine === running) $("stop").hidden = true;
  }
}

function nothingFound(request) {
  const how = "Mark one with [?] where a citation is missing";
  return `No open place was found. ${how}${request.suggest ? "." : ", or let the page look for sentences that need one."}`;
}

function say(text, wrong = false) {
  $("status").textContent = text;
  $("status").classList.toggle("wrong", wrong);
}

// ---------------------------------------------------------------- the answer

/** An element with attributes and children; text is never read as markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function showProblems(outline) {
  const told = (outline.problems || []).map((one) => `${one.file || "text"}:${one.line}:${one.column} ${one.message}`);
  if (outline.placesLeftOut) told.push(`${outline.placesLeftOut} more places are left out`);
  $("problems").hidden = !told.length;
  $("problems").replaceChildren(...told.map((text) => make("li", {}, text)));
}

function place(told, request) {
  const [before, after] = told.context.split("TARGETCIT").map((text) => text.replaceAll("OTHERCIT", "[…]"));
  const number = told.place || 0;
  const heading = make(
    "h2",
    { id: `place-${number}` },
    make("span", { class: "quiet" }, `${told.file ? `${told.file}, ` : ""}line ${told.line}: `),
    before.length > 120 ? `…${before.slice(-120).replace(/^\S*\s/, " ")}` : before,
    make("span", { class: "here", role: "img", "aria-label": "missing citation" }, "?"),
    after.length > 80 ? `${after.slice(0, 80).replace(/^\s+(?=[.,;:)])/, "")}…` : after.replace(/^\s+(?=[.,;:)])/, ""),
  );
  if (told.suggested) {
    const likely = `This sentence looks as if it needs a citation (${percent(told.suggested.need)}). `;
    heading.prepend(make("span", { class: "suggested" }, likely));
  }
  const section = make("section", { class: "place", "aria-labelledby": `place-${number}` }, heading);
  section.dataset.place = number;
  const { response, error } = told.result || {};
  if (error) {
    section.append(make("p", { class: "wrong" }, `${error.reason}: ${error.message}`));
  } else {
    const items = response.items || [];
    const elsewhere = Object.fromEntries((told.citedElsewhere || []).map((one) => [one.paperId, one.keys.join(", ")]));
    const references = Object.fromEntries((told.references || []).map((one) => [one.paperId, one]));
    const choices = new Choices(told, request);
    for (const one of response.degraded || []) section.append(make("p", { class: "quiet" }, one.message));
    if (response.asOfNote) section.append(make("p", { class: "quiet" }, response.asOfNote));
    if (items.length > 1) section.append(timeline(items));
    section.append(
      items.length
        ? make("ol", { class: "items" }, ...items.map((item) => show(item, elsewhere[item.paper.id], references[item.paper.id], choices)))
        : make("p", {}, "No paper fits well enough here."),
    );
    section.append(whyNot(told, request));
  }
  const next = [...$("answers").children].find((other) => Number(other.dataset.place) > number);
  $("answers").insertBefore(section, next || null);
}

function show(item, elsewhere, { key, bibtex }, choices) {
  const { paper } = item;
  const byline = [(paper.authors || []).join(", "), paper.published?.year, paper.venue].filter(Boolean).join(" · ");
  const sure = item.confidence === undefined ? "" : ` · ${percent(item.confidence)}\u00a0sure`;
  const copied = (text) => (event) => {
    copy(event, text);
    choices.chosen(paper.id);
  };
  const element = make(
    "li",
    { class: "item" },
    make("h3", {}, `${item.rank}. ${paper.title}`),
    make("p", { class: "quiet" }, `${byline}${byline ? " · " : ""}cited ${item.inDegree || 0} times here${sure} · id ${paper.id}`),
    elsewhere ? make("p", { class: "elsewhere" }, `Cited elsewhere in this draft as ${elsewhere}`) : null,
    ...(item.evidence || []).map(quote),
    parts(item.parts, item.words),
    make(
      "div",
      { class: "row" },
      make("button", { type: "button", onclick: copied(`\\cite{${key}}`) }, `Copy \\cite{${key}}`),
      make("button", { type: "button", onclick: copied(bibtex) }, "Copy BibTeX"),
      policy === "OFF" ? null : make("button", { type: "button", onclick: dismiss }, "Not this one"),
    ),
  );
  function dismiss() {
    choices.dismissed(paper.id);
    element.classList.add("dismissed");
  }
  return element;
}

const percent = (share) => `${Math.round(100 * share)}\u00a0%`;

/** A citing sentence with the words that the draft has too. Offsets are code points. */
function quote(span) {
  const letters = [...span.text];
  const pieces = [];
  let at = 0;
  for (const { offset = 0, length } of span.matches || []) {
    pieces.push(readable(letters.slice(at, offset)), make("mark", {}, readable(letters.slice(offset, offset + length))));
    at = offset + length;
  }
  pieces.push(readable(letters.slice(at)));
  return make("blockquote", {}, ...pieces, make("span", { class: "quiet" }, ` (${span.citingId})`));
}

/** A citing sentence names the paper as TARGETCIT and others as OTHERCIT. */
function readable(letters) {
  return letters.join("").replaceAll("TARGETCIT", "[this paper]").replaceAll("OTHERCIT", "[…]");
}

/** A bar of what the retrieval score is made of. */
function parts(told, words) {
  if (!told) return null;
  const shares = PARTS.map(([name, label]) => [name, label, Math.max(0, told[name] || 0)]).filter((part) => part[2] >= 0.005);
  const percent = (share) => `${Math.round(100 * share)} %`;
  const text = shares.map(([, label, share]) => `${label} ${percent(share)}`).join(", ");
  const bar = make("div", { class: "parts", role: "img", "aria-label": `Score: ${text}` });
  for (const [name, , share] of shares) {
    const piece = make("span", { class: name });
    piece.style.width = `${100 * share}%`;
    bar.append(piece);
  }
  const legend = shares.map(([name, label, share]) => make("span", {}, make("i", { class: name }), `${label} ${percent(share)}`));
  const said = (words || []).map((one) => one.word).join(", ");
  return make("div", {}, bar, make("p", { class: "quiet legend" }, ...legend), said ? make("p", { class: "quiet" }, `Words in common: ${said}`) : null);
}

/** When the suggested papers appeared. */
function timeline(items) {
  const years = items.map((item) => item.paper.published?.year).filter(Boolean);
  if (!years.length) return null;
  const [first, last] = [Math.min(...years), Math.max(...years)];
  const at = (year) => (first === last ? 50 : 3 + (94 * (year - first)) / (last - first));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "timeline");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `Published between ${first} and ${last}`);
  const add = (tag, attributes, text = "") => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
    svg.append(element);
  };
  add("line", { x1: "3%", x2: "97%", y1: 14, y2: 14 });
  const seen = {};
  for (const year of years) {
    seen[year] = (seen[year] || 0) + 1;
  }
  for (const [year, count] of Object.entries(seen)) add("circle", { cx: `${at(year)}%`, cy: 14, r: 4 + Math.min(6, 2 * (count - 1)) });
  add("text", { x: `${at(first)}%`, y: 36, "text-anchor": first === last ? "middle" : "start" }, String(first));
  if (first !== last) add("text", { x: `${at(last)}%`, y: 36, "text-anchor": "end" }, String(last));
  return svg;
}

/** Why a paper that the writer thinks of stands where it stands. */
function whyNot(told, request) {
  const input = make("input", { autocomplete: "off", required: "" });
  const answer = make("div", { role: "status" });
  const explain = async (event) => {
    event.preventDefault();
    answer.textContent = "…";
    try {
      const query = { context: told.context, title: request.title, abstract: request.abstract };
      const { item } = await call("Explain", { query, paperId: input.value.trim(), options: request.options });
      const where = item.rank ? `It is number ${item.rank}.` : "It is not among the candidates.";
      const stages = (item.stages || []).map((one) => `${one.stage} ${one.rank ? `#${one.rank}` : "unranked"} (${(one.score || 0).toFixed(3)})`);
      answer.replaceChildren(make("p", {}, `${item.paper.title}: ${where} ${stages.join(", ")}`), ...(item.evidence || []).map(quote), parts(item.parts, item.words) || "");
    } catch (error) {
      answer.textContent = error.message;
    }
  };
  return make(
    "form",
    { class: "why", onsubmit: explain },
    make("label", {}, "Why not this paper? The id of any paper: ", input),
    make("button", { type: "submit" }, "Explain"),
    answer,
  );
}

// ---------------------------------------------------------------- what the writer chooses

/** What this service keeps of choices: OFF, CHOICES or TEXT. */
let policy = "OFF";

async function learnPolicy() {
  try {
    const { feedback } = await call("Info", {});
    policy = (feedback || "").replace("FEEDBACK_POLICY_", "") || "OFF";
  } catch {
    policy = "OFF"; // the service is not there yet; the next question says so
  }
  $("feedback").hidden = policy === "OFF";
  $("keeping").hidden = policy !== "TEXT";
}

/** What was chosen and dismissed at one place. Each choice is sent at once, so that nothing is lost when the page is closed. */
class Choices {
  constructor(told, request) {
    this.told = told;
    this.request = request;
    this.marked = new Map();
  }

  chosen(id) {
    this.#mark(id, "chosen");
  }

  dismissed(id) {
    this.#mark(id, "dismissed");
  }

  async #mark(id, how) {
    if (policy === "OFF" || !$("share").checked || this.marked.get(id) === how) return;
    this.marked.set(id, how);
    const { snapshot, items } = this.told.result.response;
    const { title, abstract } = this.request;
    const feedback = { snapshot, shown: items.map((item) => item.paper.id), [how]: [id] };
    const text = $("keep").checked && policy === "TEXT" ? { keepText: true, query: { context: this.told.context, title, abstract } } : {};
    try {
      await call("RecordFeedback", { ...feedback, ...text });
    } catch {
      // The writer's work does not depend on it.
    }
  }
}

// ---------------------------------------------------------------- out

async function copy(event, text) {
  const button = event.currentTarget;
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "The browser does not allow copying";
  }
  setTimeout(() => (button.textContent = label), 1500);
}

// ---------------------------------------------------------------- hands

function mark() {
  const text = $("text");
  text.setRangeText(" [?]", text.selectionStart, text.selectionEnd, "end");
  text.focus();
}

function take(list) {
  files = [...list];
  $("files").textContent = files.map((file) => file.name).join(", ");
  $("unload").hidden = !files.length;
  $("text").required = !files.length;
  if (files.length) ask();
}

$("ask").addEventListener("submit", ask);
$("mark").addEventListener("click", mark);
$("stop").addEventListener("click", () => running?.abort());
$("choose").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", (event) => take(event.target.files));
$("unload").addEventListener("click", () => take([]));
$("ask").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit();
  if (event.altKey && event.code === "KeyM") {
    event.preventDefault();
    mark();
  }
});
for (const kind of ["dragenter", "dragover"]) {
  $("ask").addEventListener(kind, (event) => {
    event.preventDefault();
    $("ask").classList.add("dropping");
  });
}
for (const kind of ["dragleave", "drop"]) $("ask").addEventListener(kind, () => $("ask").classList.remove("dropping"));
$("ask").addEventListener("drop", (event) => {
  event.preventDefault();
  take(event.dataTransfer.files);
});
learnPolicy();
