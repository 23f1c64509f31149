// The page for writers: takes a draft, asks for each open place, and shows the answers as they arrive.

import { learnPolicy, place, showProblems } from "./answers.js";
import { stream, useToken } from "./service.js";

const $ = (id) => document.getElementById(id);
let files = [];
let running = null;

function options() {
  const filter = {};
  const [year, month, day] = ($("before").value || "0-0-0").split("-").map(Number);
  if (year) filter.publishedBefore = { year, month, day };
  else if ($("known").checked) throw new Error("“Rank by what was known on that date” needs a date under “Published before”");
  if ($("from").value) filter.yearFrom = Number($("from").value);
  if ($("to").value) filter.yearTo = Number($("to").value);
  const venues = $("venues").value.split(";").map((name) => name.trim()).filter(Boolean);
  if (venues.length) filter.venues = venues;
  return {
    topK: Number($("top").value) || 5,
    filter,
    rerank: $("rerank").checked,
    asOf: $("known").checked ? "AS_OF_KNOWLEDGE" : "AS_OF_FILTER",
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
  useToken($("token").value);
  $("answers").replaceChildren();
  $("problems").hidden = true;
  $("stop").hidden = false;
  say("Reading the draft…");
  if ($("token").value) learnPolicy().catch(() => {}); // the question below tells what is wrong
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
    if (error.code === "unauthenticated") wantToken();
    say(stopped ? `Stopped; ${answered} of ${places} places answered` : `That did not work: ${error.message}`, !stopped);
  } finally {
    if (mine === running) $("stop").hidden = true;
  }
}

/** Shows the field for a token: this service answers nobody without one. */
function wantToken() {
  $("access").hidden = false;
  $("token").focus();
}

function nothingFound(request) {
  const how = "Mark one with [?] where a citation is missing";
  return `No open place was found. ${how}${request.suggest ? "." : ", or let the page look for sentences that need one."}`;
}

function say(text, wrong = false) {
  $("status").textContent = text;
  $("status").classList.toggle("wrong", wrong);
}

function mark() {
  const text = $("text");
  text.setRangeText(" [?]", text.selectionStart, text.selectionEnd, "end");
  text.focus();
}

/** Moves the focus to the next or the previous paper. */
function jump(step) {
  const papers = [...document.querySelectorAll(".item h3")];
  const at = papers.indexOf(document.activeElement.closest(".item")?.querySelector("h3"));
  papers[at < 0 && step < 0 ? papers.length - 1 : at + step]?.focus();
}

function take(list) {
  files = [...list];
  $("files").textContent = files.map((file) => file.name).join(", ");
  $("unload").hidden = !files.length;
  $("text").required = !files.length;
  $("text").hidden = $("mark").hidden = $("how").hidden = Boolean(files.length);
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
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  if (event.altKey && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    event.preventDefault();
    jump(event.key === "ArrowDown" ? 1 : -1);
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
learnPolicy().catch(wantToken);
