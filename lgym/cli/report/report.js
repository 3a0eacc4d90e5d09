// The page of a report. All texts of environments and models are set as text, never as HTML.
const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.runs;
const PAGE = document.getElementById("page");
const color = (number) => COLORS[number % COLORS.length];
const MAIN = [
  ["policy/entropy", "Entropy, nats"],
  ["policy/old_kl", "KL from the behavior policy, nats"],
  ["policy/approx_kl", "KL from the behavior policy (estimate), nats"],
  ["value/explained_variance", "Explained variance of the value"],
  ["rollout/success_rate", "Success rate of rollouts"],
  ["rollout/length_mean", "Turns of an episode"],
  ["rollout/parse_rate", "Share of responses that were read"],
  ["q/mean", "Mean action value"],
  ["rollout/unique_prompts", "Distinct prompts of a rollout"],
];

function section(title, ...children) {
  PAGE.append(element("h2", {}, title), ...children);
}

function table(head, rows) {
  const made = element("table", {}, element("tr", {}, ...head.map((text) => element("th", {}, text))));
  for (const row of rows) made.append(element("tr", {}, ...row.map((cell) => element("td", {}, cell))));
  return element("div", { class: "scroll" }, made);
}

function named(number) {
  return element("span", {}, element("span", { class: "key", style: `background:${color(number)}` }), RUNS[number].name);
}

function figure(metrics, name) {
  if (metrics?.[`${name}_mean`] == null) return "";
  return `${short(metrics[`${name}_mean`])} ± ${short(metrics[`${name}_ci95`] ?? 0)}`;
}

function header() {
  const about = RUNS[0].about;
  const title = RUNS.every((run) => run.about.env === about.env) ? about.env || "lgym" : "lgym";
  document.title = `${title}: lgym report`;
  PAGE.append(element("h1", {}, title));
  PAGE.append(element("div", { class: "faint" }, `${about.algorithm}, ${about.policy}, ${about.model}${RUNS.length > 1 ? `, ${RUNS.length} runs` : ""}`));
}

function results() {
  const rows = RUNS.flatMap((run, number) => ["sampled", "greedy"].map((mode) => {
    const name = `val_${mode}/return`, about = run.about, after = about.results ?? {};
    const rate = after[`val_${mode}/success_rate`];
    const exact = Object.entries(after).find(([metric]) => metric.endsWith(`/value_${mode}`));
    return [named(number), mode, figure(about.initial_results, name), figure(after, name),
      exact ? short(exact[1]) : "", rate == null ? "" : `${(100 * rate).toFixed(1)} %`,
      (about.turns ?? 0).toLocaleString("en"), about.finished ? "" : "not finished"];
  }));
  const known = Object.entries(RUNS[0].about.reference_returns ?? {}).map(([name, value]) => `${name} ${short(value)}`);
  section("Results", table(["run", "policy", "before training", "trained", "exact value", "success", "turns", ""], rows),
    element("p", { class: "faint" }, `Mean return per episode with its 95 % interval.${known.length ? ` Known policies: ${known.join(", ")}.` : ""}`));
}

function overlay(metric, extra = {}) {
  return RUNS.map((run, number) => ({ label: RUNS.length > 1 ? run.name : metric, color: color(number), points: run.curves[metric] ?? [], ...extra }));
}

function curves() {
  const grid = element("div", { class: "grid" });
  const returns = RUNS.flatMap((run, number) => [
    { label: "sampled", color: color(number), points: run.curves["val_sampled/return_mean"] ?? [] },
    { label: "greedy", color: color(number), dashed: true, points: run.curves["val_greedy/return_mean"] ?? [] },
    { label: "rollouts", color: color(number), thin: true, points: run.curves["rollout/return_mean"] ?? [] },
  ]);
  const levels = Object.entries(RUNS[0].about.reference_returns ?? {}).map(([label, value]) => ({ label, value }));
  if (returns.some((one) => one.points.length)) grid.append(chart("Mean return: sampled, greedy (dashed), rollouts (thin)", returns, levels));
  const known = new Set(RUNS.flatMap((run) => Object.keys(run.curves)));
  for (const metric of [...known].filter((name) => /\/value_(sampled|greedy)$/.test(name)).sort().reverse()) {
    grid.append(chart(`Exact value: ${metric}`, overlay(metric), levels));
  }
  for (const [metric, title] of MAIN) if (known.has(metric)) grid.append(chart(title, overlay(metric)));
  const choice = element("select", { "aria-label": "Another metric" }, element("option", { value: "" }, "another metric"),
    ...[...known].sort().map((name) => element("option", { value: name }, name)));
  const place = element("div");
  choice.addEventListener("change", () => place.replaceChildren(...(choice.value ? [chart(choice.value, overlay(choice.value))] : [])));
  section("Curves over turns", element("p", { class: "faint" }, "Drag to zoom, double-click for the whole."), grid,
    element("div", { class: "controls", style: "margin-top:14px" }, choice), place);
}

function pictures() {
  const shown = RUNS.flatMap((run, number) => Object.entries(run.pictures).filter(([, list]) => list.length).map(([tag, list]) => {
    const picture = element("img", { alt: tag }), where = element("span", { class: "faint" });
    const slider = element("input", { type: "range", min: 0, max: list.length - 1, value: list.length - 1, "aria-label": `${tag} over the run` });
    const show = () => {
      const [turns, data] = list[slider.value];
      picture.src = `data:image/png;base64,${data}`;
      where.textContent = `after ${turns.toLocaleString("en")} turns`;
    };
    slider.addEventListener("input", show);
    show();
    return element("div", { class: "panel" }, element("div", { class: "controls" }, named(number), tag, list.length > 1 ? slider : null, where), picture);
  }));
  if (shown.length) section("Pictures", element("div", { class: "grid", style: "grid-template-columns:1fr" }, ...shown));
}

function bars(turn) {
  return Object.entries(turn.probabilities).map(([text, p]) => {
    const taken = text === turn.response_text;
    return element("div", { class: `bar${taken ? " taken" : ""}` }, element("span", { class: "name", title: text }, `${taken ? "→ " : ""}${text}`),
      element("div", { class: "track" }, element("div", { class: "fill", style: `width:${(100 * p).toFixed(1)}%` })), `${(100 * p).toFixed(1)} %`);
  });
}

function episodes() {
  const list = RUNS.flatMap((run, number) => run.episodes.map((episode) => ({ episode, number })));
  if (!list.length) return;
  const choice = element("select", { "aria-label": "Episode" }, ...list.map(({ episode, number }, place) => element("option", { value: place },
    `${RUNS.length > 1 ? `${RUNS[number].name}, ` : ""}rollout ${episode.rollout}, seed ${episode.seed}: return ${short(episode.return)}, ${episode.turns.length + episode.cut_turns} turns`)));
  const before = element("button", { type: "button" }, "◀ back"), next = element("button", { type: "button" }, "next ▶");
  const where = element("span", { class: "faint" }), body = element("div"), values = element("div");
  const panel = element("div", { class: "panel", tabIndex: 0, "aria-label": "Episode, arrow keys step" }, element("div", { class: "controls" }, choice, before, next, where), body, values);
  let at = 0;
  const current = () => list[choice.value].episode;
  function show() {
    const { turns, terminated, cut_turns: rest, system_prompt: prompt } = current(), turn = turns[at];
    where.textContent = `turn ${at + 1} of ${turns.length}${rest ? ` (${rest} more are not kept)` : at === turns.length - 1 ? `, then ${terminated ? "terminated" : "truncated"}` : ""}`;
    body.replaceChildren(...(at === 0 ? [element("pre", { class: "faint" }, prompt)] : []), element("pre", {}, turn.observation_text),
      ...(Object.keys(turn.probabilities).length ? bars(turn) : [element("pre", {}, `→ ${turn.response_text}`)]),
      element("div", { class: "faint" }, `reward ${short(turn.reward)}${turn.value === null ? "" : `, value before it ${short(turn.value)}`}`));
  }
  function begin() {
    at = Math.min(at, current().turns.length - 1);
    const points = current().turns.map((turn, n) => [n + 1, turn.value]).filter((p) => p[1] !== null);
    values.replaceChildren(...(points.length > 1 ? [chart("Value over the episode", [{ label: "value", color: color(0), points }], [], "turn")] : []));
    show();
  }
  const step = (by) => { at = Math.min(current().turns.length - 1, Math.max(0, at + by)); show(); };
  before.addEventListener("click", () => step(-1));
  next.addEventListener("click", () => step(1));
  choice.addEventListener("change", () => { at = 0; begin(); });
  panel.addEventListener("keydown", (event) => {
    if (event.target === choice) return;
    if (event.key === "ArrowRight") step(1);
    else if (event.key === "ArrowLeft") step(-1);
    else return;
    event.preventDefault();
  });
  choice.value = list.length - 1;
  begin();
  section("Episodes", panel);
}

function rest() {
  const noted = RUNS.flatMap((run, number) => run.guard.map(([turns, text]) => [named(number), turns.toLocaleString("en"), element("pre", {}, text)]));
  if (noted.length) section("What the collapse guard said", table(["run", "turns", ""], noted));
  const settings = Object.entries(DATA.settings);
  if (settings.length) section("Settings that differ", table(["setting", ...RUNS.map((_, number) => named(number))], settings.map(([name, row]) => [name, ...row])));
  section("How it was run", table(["run", "command", "commit", "machine", "versions"], RUNS.flatMap((run, number) => (run.about.sessions ?? []).map((one) => [
    named(number), element("pre", {}, one.command), one.commit ?? "", one.machine, Object.entries(one.versions).map((pair) => pair.join(" ")).join(", ")]))));
}

header();
results();
curves();
pictures();
episodes();
rest();
