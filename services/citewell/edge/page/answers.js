// Shows answers, explains papers, and reports what the writer chooses.

import { call } from "./service.js";

const PARTS = [
  ["content", "its own text"],
  ["contexts", "what others said"],
  ["citing", "who cites it"],
  ["words", "the same words"],
];
const $ = (id) => document.getElementById(id);

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

export function showProblems(outline) {
  const told = (outline.problems || []).map((one) => `${one.file || "text"}:${one.line}:${one.column} ${one.message}`);
  if (outline.placesLeftOut) told.push(`${outline.placesLeftOut} more places are left out`);
  $("problems").hidden = !told.length;
  $("problems").replaceChildren(...told.map((text) => make("li", {}, text)));
}

export function place(told, request) {
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
    make("h3", { tabindex: "-1" }, `${item.rank}. ${paper.title}`),
    make("p", { class: "quiet" }, `${byline}${byline ? " · " : ""}${cited(item.inDegree)}${sure} · `, make("span", { class: "id" }, `id ${paper.id}`)),
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

function cited(times = 0) {
  return times === 1 ? "cited once here" : times ? `cited ${times} times here` : "not cited here yet";
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
  return make("blockquote", {}, ...pieces, make("span", { class: "quiet id" }, ` (${span.citingId})`));
}

/** A citing sentence names the paper as TARGETCIT and others as OTHERCIT. */
function readable(letters) {
  return letters.join("").replaceAll("TARGETCIT", "[this paper]").replaceAll("OTHERCIT", "[…]");
}

/** A bar of what the retrieval score is made of. */
function parts(told, words) {
  if (!told) return null;
  const shares = PARTS.map(([name, label]) => [name, label, Math.max(0, told[name] || 0)]).filter((part) => part[2] >= 0.005);
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

/** When the suggested papers appeared, with their numbers. */
function timeline(items) {
  const ranks = {};
  for (const { rank, paper } of items) {
    if (paper.published?.year) (ranks[paper.published.year] ||= []).push(rank);
  }
  const years = Object.keys(ranks).map(Number);
  if (!years.length) return null;
  const [first, last] = [Math.min(...years), Math.max(...years)];
  const at = (year) => (first === last ? 50 : 3 + (94 * (year - first)) / (last - first));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const told = years.map((year) => `${year}: ${ranks[year].map((rank) => `paper ${rank}`).join(", ")}`);
  svg.setAttribute("class", "timeline");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `When they were published. ${told.join("; ")}`);
  const add = (tag, attributes, text = "") => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
    svg.append(element);
  };
  add("line", { x1: "3%", x2: "97%", y1: 22, y2: 22 });
  for (const year of years) {
    add("circle", { cx: `${at(year)}%`, cy: 22, r: 4 + Math.min(6, 2 * (ranks[year].length - 1)) });
    if (items.length <= 10) add("text", { x: `${at(year)}%`, y: 11, "text-anchor": "middle" }, ranks[year].join(","));
  }
  add("text", { x: `${at(first)}%`, y: 42, "text-anchor": first === last ? "middle" : "start", class: "year" }, String(first));
  if (first !== last) add("text", { x: `${at(last)}%`, y: 42, "text-anchor": "end", class: "year" }, String(last));
  return svg;
}

const STAGES = {
  retrieval: "retrieval",
  second_phase: "the second phase",
  rerank: "close reading",
  joined: "retrieval and reading together",
};

/** Why a paper that the writer thinks of, by its id or title, stands where it stands. */
function whyNot(told, request) {
  const input = make("input", { autocomplete: "off", required: "" });
  const answer = make("div", { role: "status" });
  const explain = async (paperId) => {
    const query = { context: told.context, title: request.title, abstract: request.abstract };
    const { item } = await call("Explain", { query, paperId, options: request.options });
    const where = item.rank ? `number ${item.rank} here` : "not among the candidates here";
    const stages = (item.stages || []).map((one) => `${one.rank ? `number ${one.rank}` : "not ranked"} by ${STAGES[one.stage] || one.stage}`);
    const text = [`${item.paper.title} is ${where}`, stages.join(", ")].filter(Boolean).join(": ");
    answer.replaceChildren(make("p", {}, `${text}.`), ...(item.evidence || []).map(quote), parts(item.parts, item.words) || "");
  };
  const guarded = async (work) => {
    answer.textContent = "…";
    try {
      await work();
    } catch (error) {
      answer.textContent = error.message;
    }
  };
  const asked = async () => {
    const wanted = input.value.trim();
    try {
      await explain(wanted);
    } catch (error) {
      const alike = error.code === "not_found" ? await titled(wanted) : [];
      if (!alike.length) throw error;
      const button = ({ id, title }) => make("button", { type: "button", onclick: () => guarded(() => explain(id)) }, title);
      answer.replaceChildren(make("p", {}, "Which one?"), make("div", { class: "row" }, ...alike.map(button)));
    }
  };
  const submitted = (event) => {
    event.preventDefault();
    guarded(asked);
  };
  return make(
    "form",
    { class: "why", onsubmit: submitted },
    make("label", {}, "Why not this paper? Its id or title: ", input),
    make("button", { type: "submit" }, "Explain"),
    answer,
  );
}

/** Papers whose titles have most of the words. */
async function titled(text) {
  const split = (words) => words.toLowerCase().match(/[\p{L}\p{N}]{3,}/gu) || [];
  const wanted = split(text);
  if (wanted.length < 2) return [];
  const told = await call("Recommend", { query: { title: text }, options: { topK: 20, rerank: false } });
  const share = (paper) => wanted.filter((word) => split(paper.title).includes(word)).length / wanted.length;
  const papers = (told.items || []).map((item) => item.paper).filter((paper) => share(paper) > 0.5);
  return papers.sort((one, other) => share(other) - share(one)).slice(0, 5);
}

/** What this service keeps of choices: OFF, CHOICES or TEXT. */
let policy = "OFF";

/** Asks what the service keeps; a ServiceError if it wants a token. */
export async function learnPolicy() {
  try {
    const { feedback } = await call("Info", {});
    policy = (feedback || "").replace("FEEDBACK_POLICY_", "") || "OFF";
  } catch (error) {
    policy = "OFF"; // the service is not there yet, or wants a token; the next question says so
    if (error.code === "unauthenticated") throw error;
  } finally {
    $("feedback").hidden = policy === "OFF";
    $("keeping").hidden = policy !== "TEXT";
  }
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

async function copy(event, text) {
  const button = event.currentTarget;
  const label = (button.dataset.label ||= button.textContent);
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "The browser does not allow copying";
  }
  setTimeout(() => (button.textContent = label), 4000);
}
