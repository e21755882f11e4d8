const { make, data } = qsft;
const [TOKENS, CUT, CORRECT, LENIENT, ANSWER, NOTE] = [...Array(6).keys()];
const PAGE = 10;
const element = (id) => document.getElementById(id);
const several = data.methods.length > 1;
const share = (problem, method) => problem.runs[method].reduce((sum, one) => sum + one[CORRECT], 0) / problem.runs[method].length;
const moved = (problem) => data.methods.slice(1).map((_, i) => share(problem, i + 1) - share(problem, 0));

// What a filter keeps: a test of one response, or of a problem over all methods.
const RESPONSES = {
  all: () => true, wrong: (one) => !one[CORRECT], right: (one) => one[CORRECT], none: (one) => one[ANSWER] === null,
  cut: (one) => one[CUT], differ: (one) => one[CORRECT] !== one[LENIENT],
};
const PROBLEMS = {
  changed: (problem) => moved(problem).some((by) => by !== 0), better: (problem) => moved(problem).some((by) => by > 0),
  worse: (problem) => moved(problem).some((by) => by < 0),
};
const state = { page: 0, matches: [] };

// Texts are packed in chunks of problems and unpacked when someone reads or searches them.
const unpacked = [];
function texts(chunk) {
  unpacked[chunk] ??= (async () => {
    const bytes = Uint8Array.from(atob(element(`texts-${chunk}`).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  })();
  return unpacked[chunk];
}
const textsOf = async (problem) => (await texts(Math.floor(problem.at / data.chunk)))[problem.at % data.chunk];

function kept(problem) {
  const filter = element("reader-filter").value;
  if (filter in PROBLEMS) return PROBLEMS[filter](problem) ? problem.runs.map((run) => run.map((_, i) => i)) : null;
  const found = problem.runs.map((run) => run.flatMap((one, i) => (RESPONSES[filter](one) ? [i] : [])));
  return found.some((run) => run.length) ? found : null;
}

async function says(problem, term) {
  const facts = [problem.id, problem.question, problem.gold, ...problem.runs.flat().map((one) => one[ANSWER] ?? "")];
  if (facts.some((fact) => String(fact).toLowerCase().includes(term))) return true;
  return (await textsOf(problem)).flat().some((text) => text.toLowerCase().includes(term));
}

let asked = 0;
async function search() {
  const turn = ++asked;
  const task = element("reader-task").value;
  const term = element("reader-search").value.trim().toLowerCase();
  const matches = [];
  for (const problem of data.problems) {
    if (task !== "" && problem.task !== task) continue;
    const samples = kept(problem);
    if (!samples || (term && !(await says(problem, term)))) continue;
    if (turn !== asked) return; // the reader typed on
    matches.push([problem, samples]);
  }
  Object.assign(state, { page: 0, matches });
  await show();
}

function response(one, text, open) {
  const parts = [one[CORRECT] ? "right" : "wrong", one[LENIENT] !== one[CORRECT] ? (one[LENIENT] ? "right by the lenient score" : "wrong by the lenient score") : "",
    one[ANSWER] === null ? "no answer" : "answer ", `${one[TOKENS].toLocaleString("en")} tokens`, one[CUT] ? "cut off" : "", one[NOTE] ?? ""];
  const line = parts.filter(Boolean).flatMap((part, i) => [i ? " · " : "", part === "answer " ? make("b", {}, one[ANSWER]) : part]);
  const details = make("details", { class: `response ${one[CORRECT] ? "right" : ""}` }, make("summary", {}, ...line), make("pre", { tabindex: 0 }, text));
  details.open = open;
  return details;
}

async function card([problem, samples]) {
  const written = await textsOf(problem);
  const options = Object.entries(problem.options ?? {}).map(([letter, text]) => make("li", {}, `${letter}. ${text}`));
  const sides = problem.runs.map((run, method) => make("div", { class: "side" },
    make("p", { class: "note" }, `${several ? data.methods[method] + ": " : ""}${Math.round(1000 * share(problem, method)) / 10} % of ${run.length} right`),
    ...samples[method].map((i) => response(run[i], written[method][i], run.length === 1))));
  return make("article", { class: "problem card" }, make("h3", {}, `${problem.task} · problem ${problem.number}`),
    make("p", { class: "question" }, problem.question ?? problem.id), ...(options.length ? [make("ul", {}, ...options)] : []),
    ...(problem.gold === null ? [] : [make("p", {}, "Gold answer: ", make("b", {}, String(problem.gold)))]), make("div", { class: "sides" }, ...sides));
}

async function show() {
  const pages = Math.max(1, Math.ceil(state.matches.length / PAGE));
  const shown = state.matches.slice(state.page * PAGE, (state.page + 1) * PAGE);
  element("reader-list").replaceChildren(...(await Promise.all(shown.map(card))));
  const responses = state.matches.reduce((sum, [, samples]) => sum + samples.flat().length, 0);
  element("reader-count").textContent = `${state.matches.length.toLocaleString("en")} problems, ${responses.toLocaleString("en")} responses · page ${state.page + 1} of ${pages}`;
  element("reader-back").disabled = state.page === 0;
  element("reader-next").disabled = state.page + 1 >= pages;
}

function turn(by) {
  state.page += by;
  element("reader-bar").scrollIntoView();
  return show();
}
const choices = (pairs) => pairs.map(([value, text]) => make("option", { value }, text));
element("reader-task").append(...choices([["", "all tasks"], ...[...new Set(data.problems.map((one) => one.task))].map((name) => [name, name])]));
element("reader-filter").append(...choices([...(several ? [["changed", "changed"], ["better", "better than the first"], ["worse", "worse than the first"]] : []),
  ["all", "all responses"], ["wrong", "wrong"], ["right", "right"], ["none", "no answer"], ["cut", "cut off"], ["differ", "strict ≠ lenient"]]));
for (const id of ["reader-task", "reader-filter"]) element(id).addEventListener("change", search);
element("reader-search").addEventListener("input", search);
element("reader-back").addEventListener("click", () => turn(-1));
element("reader-next").addEventListener("click", () => turn(1));
await search();
