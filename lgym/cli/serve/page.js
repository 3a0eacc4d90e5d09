// The page of `lgym serve`. All texts of environments and models are set as text, never as HTML.
const at = (id) => document.getElementById(id);
const TOKEN = location.hash.slice(1);
const LETTER_KEYS = "123456789";
const SHOWN_TURNS = 200;
let episode = null, shown = null, values = [], log = [], timer = null, waiting = false;

async function post(path, body) {
  const headers = { "Content-Type": "application/json", ...(TOKEN ? { Authorization: `Bearer ${TOKEN}` } : {}) };
  const reply = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  const said = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new Error(said.error?.message ?? `status ${reply.status}`);
  return said;
}

// One request at a time: what comes meanwhile, such as a key that is held down, is left out.
async function once(work) {
  if (waiting) return;
  waiting = true;
  try {
    await work();
    at("note").textContent = "";
  } catch (error) {
    stop();
    at("note").textContent = error.message;
  } finally {
    waiting = false;
  }
}

const begin = () => once(async () => {
  stop();
  shown = await post("episodes", { seed: Number(at("seed").value) || 0 });
  episode = shown.id;
  values = [];
  log = [];
  draw();
});

const turn = (action) => once(async () => {
  if (!episode || shown.ending) return;
  const before = shown.observation_text;
  shown = await post(`episodes/${episode}`, { action: action ?? null, sample: at("sample").checked });
  log.unshift([String(shown.turns), before, `${action === undefined ? "" : "you: "}${shown.taken}`, short(shown.reward)]);
  log.length = Math.min(log.length, SHOWN_TURNS);
  draw();
});

function stop() {
  clearInterval(timer);
  timer = null;
  at("play").textContent = "Play";
  at("play").setAttribute("aria-pressed", "false");
}

function toggle() {
  if (timer) return stop();
  timer = setInterval(() => (shown?.ending ? stop() : turn()), 400);
  at("play").textContent = "Stop";
  at("play").setAttribute("aria-pressed", "true");
}

function draw() {
  if (shown.picture) at("picture").replaceChildren(element("img", { src: `data:image/png;base64,${shown.picture}`, alt: "The environment" }));
  else at("picture").replaceChildren(...(shown.drawing ? [element("pre", {}, shown.drawing)] : []));
  at("observation").textContent = shown.observation_text;
  at("score").textContent = `turn ${shown.turns}, return ${short(shown.return)}${shown.reward === null ? "" : `, last reward ${short(shown.reward)}`}${shown.ending ? `; ${shown.ending}` : ""}`;
  const advice = shown.advice;
  const known = advice ? Object.entries(advice.probabilities) : [];
  at("answers").replaceChildren(...known.map(([text, p], number) => {
    const pick = element("button", { type: "button", class: "name" }, `${LETTER_KEYS[number] ? `${LETTER_KEYS[number]}  ` : ""}${text}`);
    pick.addEventListener("click", () => turn(text));
    return element("div", { class: `bar${text === advice.text ? " taken" : ""}` }, pick,
      element("div", { class: "track" }, element("div", { class: "fill", style: `width:${(100 * p).toFixed(1)}%` })), `${(100 * p).toFixed(1)} %`);
  }));
  if (advice && !known.length) at("answers").replaceChildren(element("pre", {}, advice.text));
  if (advice && advice.value !== null) values.push([shown.turns, advice.value]);
  at("values").replaceChildren(...(values.length > 1 ? [chart("Value: the return that is expected from here", [{ label: "value", color: COLORS[0], points: values }], [], "turn")] : []));
  const table = element("table", {}, element("tr", {}, ...["turn", "observation", "answer", "reward"].map((text) => element("th", {}, text))));
  for (const row of log) table.append(element("tr", {}, ...row.map((cell) => element("td", {}, element("pre", {}, cell)))));
  at("log").replaceChildren(table);
}

at("agent").addEventListener("click", () => turn());
at("play").addEventListener("click", toggle);
at("new").addEventListener("click", begin);
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.type === "number") return;
  const number = LETTER_KEYS.indexOf(event.key);
  if (event.key === " " && event.target.tagName !== "BUTTON" && event.target.type !== "checkbox") turn();
  else if (event.key === "p") toggle();
  else if (event.key === "n") { at("seed").value = Number(at("seed").value) + 1; begin(); }
  else if (number >= 0 && shown?.candidates[number] !== undefined) turn(shown.candidates[number]);
  else return;
  event.preventDefault();
});
fetch("health").then((reply) => reply.json()).then((about) => {
  at("title").textContent = about.env;
  document.title = `${about.env}: lgym`;
});
begin();
