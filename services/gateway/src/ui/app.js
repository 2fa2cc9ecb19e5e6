// The page: sign in, the list of runs, one run live. A client of the public API and nothing else;
// field names are those of the REST JSON.

import { Chart, spark, short } from "./chart.js";

const REFRESH_MS = 400;      // facts in a burst cause one refresh
const PAGE_SIZE = 50;
const LOG_LINES_MAX = 2000;  // lines kept on the page; the whole log is in the API
const SAMPLES_MAX = 120;
const STALE_MS = 35_000;     // two missed heartbeats

const STATES = {
  RUN_STATE_CREATED: ["created", "idle"],
  RUN_STATE_QUEUED: ["queued", "warn"],
  RUN_STATE_PROVISIONING: ["provisioning", "busy"],
  RUN_STATE_PREPARING: ["preparing", "busy"],
  RUN_STATE_TRAINING: ["training", "busy"],
  RUN_STATE_VALIDATING: ["validating", "busy"],
  RUN_STATE_COMPLETED: ["completed", "good"],
  RUN_STATE_PAUSED: ["paused", "warn"],
  RUN_STATE_CANCELLED: ["cancelled", "idle"],
  RUN_STATE_FAILED: ["failed", "bad"],
};
const FINAL = ["RUN_STATE_COMPLETED", "RUN_STATE_CANCELLED", "RUN_STATE_FAILED"];
const MAP50 = "metrics/mAP50(B)", MAP = "metrics/mAP50-95(B)";
const PRECISION = "metrics/precision(B)", RECALL = "metrics/recall(B)";

const main = document.getElementById("main");
let view = { close() {} };
let may = { edit: false };

// ---- building blocks -------------------------------------------------------------------------

/** Makes an element; texts are always text, never markup. */
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail ?? `the server answered ${status}`);
    this.status = status;
    this.problem = problem;
  }
}

async function call(method, path, body) {
  const response = await fetch(path, {
    method,
    headers: body === undefined ? {} : { "content-type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  let answer = {};
  try { answer = text ? JSON.parse(text) : {}; } catch { answer = { detail: text.slice(0, 200) }; }
  if (response.ok) return answer;
  if (response.status === 401 && !path.startsWith("/v1/session")) signedOut();
  throw new Refused(response.status, answer);
}

function notice(error) {
  if (error instanceof Refused && error.status === 401) return;
  const card = h("div", { class: "note-card", role: "alert" }, error.message);
  const { type, instance } = error.problem ?? {};
  if (type) card.append(" ", h("a", { href: type, target: "_blank" }, "What to do"));
  if (instance) card.append(h("div", { class: "dim mono" }, instance));
  document.getElementById("notes").append(card);
  setTimeout(() => card.remove(), 9000);
}

const number = (value) => Number(value ?? 0);
const seconds = (duration) => duration ? parseFloat(duration) : 0;

function money(micros) {
  const credits = number(micros) / 1e6;
  // Seconds on a small machine cost millionths: they are shown as well.
  const size = Math.abs(credits);
  const digits = size === 0 || size >= 1 ? 2 : size >= 0.01 ? 4 : 6;
  return `${credits.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: digits })} cr`;
}

function span(total) {
  const whole = Math.round(total);
  if (whole < 60) return `${whole} s`;
  if (whole < 600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  return `${Math.floor(whole / 3600)} h ${Math.floor(whole / 60) % 60} min`;
}

function ago(instant) {
  const passed = (Date.now() - Date.parse(instant)) / 1000;
  if (!Number.isFinite(passed)) return "–";
  if (passed < 5) return "now";
  if (passed < 3600) return `${span(passed).split(" ").slice(0, 2).join(" ")} ago`;
  if (passed < 86_400) return `${Math.floor(passed / 3600)} h ago`;
  return new Date(instant).toLocaleDateString(undefined, { day: "numeric", month: "short" });
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = number(value), unit = 0;
  while (size >= 1024 && unit < units.length - 1) { size /= 1024; unit += 1; }
  return `${size.toFixed(size >= 100 || unit === 0 ? 0 : 1)} ${units[unit]}`;
}

function pill(state) {
  const [word, tone] = STATES[state] ?? ["unknown", "idle"];
  return h("span", { class: "pill", "data-tone": tone, "data-testid": "run-state", "data-state": word }, word);
}

/** What committed compute costs at the run's price, as billing computes it. */
const committedCost = (run) => Math.round(number(run.price_per_hour_micros) * seconds(run.committed) / 3600);
const metric = (run, name) => {
  const value = run.metrics?.[name];
  return value === undefined ? "–" : short(Number(value));
};

// ---- frame -----------------------------------------------------------------------------------

function connection(state, words) {
  const live = document.getElementById("live");
  live.dataset.state = state;
  live.textContent = words;
}

function signedOut() {
  if (location.hash !== "#/sign-in") location.hash = "#/sign-in";
}

async function frame() {
  const self = await call("GET", "/v1/self");
  may = { edit: ["ROLE_EDITOR", "ROLE_ADMIN", "ROLE_OWNER", "ROLE_OPERATOR"].includes(self.role) };
  document.getElementById("workspace").textContent = self.workspace?.name || self.workspace?.slug || "";
  document.getElementById("bar").hidden = false;
  balance();
}

async function balance() {
  try {
    const answer = await call("GET", "/v1/billing/balance");
    document.getElementById("balance").textContent = money(answer.balance?.available_micros);
  } catch (error) {
    if (error.status !== 401) document.getElementById("balance").textContent = "–";
  }
}

/** Opens a stream that says how it is doing. The browser reconnects and gives the last id back. */
function stream(path, handlers, opened) {
  const source = new EventSource(path);
  let watch = null;
  const heard = () => {
    connection("on", "live");
    clearTimeout(watch);
    watch = setTimeout(() => connection("wait", "reconnecting"), STALE_MS);
  };
  source.onopen = () => { heard(); opened?.(); };
  source.onerror = () => connection("wait", source.readyState === EventSource.CLOSED ? "offline" : "reconnecting");
  source.addEventListener("heartbeat", heard);
  for (const [name, handle] of Object.entries(handlers)) {
    source.addEventListener(name, (event) => {
      heard();
      handle(event.data ? JSON.parse(event.data) : {}, event);
    });
  }
  return { close() { clearTimeout(watch); source.close(); connection("off", "offline"); } };
}

/** Many calls, one piece of work. Once cancelled, by a view that closes, it does nothing more. */
function debounced(work) {
  let timer = null, cancelled = false;
  const later = () => {
    if (!cancelled) timer ??= setTimeout(() => { timer = null; work().catch(notice); }, REFRESH_MS);
  };
  later.cancel = () => { cancelled = true; clearTimeout(timer); };
  return later;
}

// ---- sign in ---------------------------------------------------------------------------------

function signInView() {
  document.getElementById("bar").hidden = true;
  document.title = "Sign in · Fovea";
  const input = h("input", {
    id: "key", name: "key", type: "password", autocomplete: "current-password", required: true,
    placeholder: "fv_…", spellcheck: "false", "data-testid": "key-input", "aria-describedby": "key-error",
  });
  const error = h("p", { class: "error", id: "key-error", role: "alert", "data-testid": "sign-in-error" });
  const button = h("button", { class: "main", type: "submit", "data-testid": "sign-in-button" }, "Sign in");
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    error.textContent = "";
    try {
      await call("POST", "/v1/session", { key: input.value.trim() });
      location.hash = "#/runs";
    } catch (refused) {
      error.textContent = refused.message;
      input.select();
    } finally {
      button.disabled = false;
    }
  };
  main.replaceChildren(h("div", { class: "sign-in" }, h("form", { class: "panel", onsubmit: submit, "data-testid": "sign-in-form" },
    h("div", { class: "brand" }, h("img", { src: "/assets/mark.svg", alt: "", width: 28, height: 28 }), "Fovea"),
    h("label", { for: "key" }, "API key"), input, error, button,
    h("p", { class: "hint" }, "The first key is in the file admin.key of the data folder. A one-time link from the terminal signs you in as well."))));
  input.focus();
  return { close() {} };
}

// ---- runs ------------------------------------------------------------------------------------

function runsView() {
  document.title = "Runs · Fovea";
  const body = h("tbody", { "data-testid": "run-list" });
  const count = h("span", { class: "dim" });
  const more = h("button", { class: "more", type: "button", hidden: true, "data-testid": "more-runs" }, "Show older runs");
  const heads = [["Run"], ["State"], ["Progress"], ["mAP50", 1], ["mAP50-95", 1], ["Cost", 1], ["Estimate", 1], ["Created", 1]];
  const table = h("div", { class: "panel list" }, h("table", { "data-testid": "runs-table" },
    h("thead", {}, h("tr", {}, ...heads.map(([name, right]) => h("th", { class: right ? "num" : null, scope: "col" }, name)))), body));
  main.replaceChildren(h("div", { class: "head" }, h("h1", {}, "Runs"), count), table, more);
  let pages = 1;

  async function load() {
    const runs = [];
    let token = "";
    for (let page = 0; page < pages; page += 1) {
      const query = new URLSearchParams({ page_size: PAGE_SIZE, page_token: token });
      const answer = await call("GET", `/v1/runs?${query}`);
      runs.push(...answer.runs);
      token = answer.next_page_token;
      if (!token) break;
    }
    more.hidden = !token;
    count.textContent = `${runs.length}${token ? "+" : ""}`;
    body.replaceChildren(...(runs.length ? runs.map(row) : [emptyRow()]));
  }
  more.addEventListener("click", () => { pages += 1; load().catch(notice); });

  const refresh = debounced(async () => { await load(); balance(); });
  load().catch(notice);
  const query = new URLSearchParams({ types: "fovea.runs." });
  const live = stream(`/v1/events?${query}`, { message: refresh }, refresh);
  const timer = setInterval(() => { if (!document.hidden) refresh(); }, 30_000);
  return { close() { live.close(); clearInterval(timer); refresh.cancel(); } };
}

function emptyRow() {
  return h("tr", {}, h("td", { colspan: 8, class: "blank", "data-testid": "empty-state" },
    "No runs yet. Start one with ", h("span", { class: "mono" }, "fovea train"), "."));
}

function row(run) {
  const address = `#/runs/${encodeURIComponent(run.id)}`;
  const total = number(run.spec?.epochs), done = number(run.epochs_done);
  const bar = h("i");
  bar.style.width = `${total ? Math.min(100, done / total * 100) : 0}%`;
  const estimate = run.estimate ? money(run.estimate.cost_likely_micros) : "–";
  return h("tr", { "data-testid": "run-row", "data-run": run.id, onclick: () => { location.hash = address; } },
    h("td", {}, h("a", { class: "name", href: address }, run.name || run.id),
      h("div", { class: "under" }, [run.spec?.model, run.gpu_type, run.spec?.image_size && `${run.spec.image_size} px`].filter(Boolean).join(" · "))),
    h("td", {}, pill(run.state)),
    h("td", {}, h("div", { class: "meter", role: "progressbar", "aria-valuenow": done, "aria-valuemax": total, "aria-label": "epochs" }, bar),
      h("div", { class: "under" }, `${done} / ${total || "?"} epochs`)),
    h("td", { class: "num", "data-label": "mAP50", "data-testid": "run-map50" }, metric(run, MAP50)),
    h("td", { class: "num", "data-label": "mAP50-95", "data-testid": "run-map" }, metric(run, MAP)),
    h("td", { class: "num", "data-label": "cost", "data-testid": "run-cost" }, money(committedCost(run))),
    h("td", { class: "num dim", "data-label": "estimate" }, estimate),
    h("td", { class: "num dim", title: run.created_at }, ago(run.created_at)));
}

// ---- one run ---------------------------------------------------------------------------------

function tile(label, testid) {
  const value = h("div", { class: "value", "data-testid": testid }, "–");
  const under = h("div", { class: "under" }, "\u00a0");
  return { element: h("div", { class: "tile" }, h("div", { class: "label" }, label), value, under), value, under };
}

function panel(title, width, ...content) {
  return h("section", { class: `panel ${width}` }, h("h2", {}, title), ...content);
}

function runView(id) {
  const base = `/v1/runs/${encodeURIComponent(id)}`;
  const title = h("h1", { "data-testid": "run-title" }, "Run");
  const state = h("span");
  const actions = h("span");
  const facts = h("div", { class: "facts" });
  const tiles = {
    map50: tile("mAP50", "tile-map50"), map: tile("mAP50-95", "tile-map"),
    cost: tile("Cost so far", "cost-so-far"), estimate: tile("Estimated cost", "cost-estimate"),
    committed: tile("Committed compute", "committed"),
  };
  const bar = h("i");
  const meter = h("div", { class: "meter", role: "progressbar", "aria-label": "epochs", "aria-valuemin": 0 }, bar);
  const epoch = h("b", { "data-testid": "progress-epoch" }, "–");
  const rate = h("b", { "data-testid": "progress-rate" }, "–");
  const eta = h("b", { "data-testid": "progress-eta" }, "–");
  const wait = h("b", { "data-testid": "progress-wait" }, "–");
  const losses = new Chart({ testid: "chart-loss" });
  const maps = new Chart({ testid: "chart-map", floor: 0, best: "max" });
  const rates = new Chart({ testid: "chart-rate", floor: 0 });
  const ratePanel = panel("Learning rate", "span-12", rates.element);
  ratePanel.hidden = true;
  const log = logTail();
  const host = hostPanel();
  const attempts = h("tbody");
  const settings = h("dl");
  const files = h("div", { class: "files" });
  main.replaceChildren(
    h("div", { class: "head" }, title, state, h("span", { class: "grow" }), actions, facts),
    h("div", { class: "tiles" }, ...Object.values(tiles).map((one) => one.element)),
    h("div", { class: "panel progress", "data-testid": "progress" },
      h("span", {}, h("span", { class: "dim" }, "epoch "), epoch), h("span", {}, h("span", { class: "dim" }, "speed "), rate),
      h("span", {}, h("span", { class: "dim" }, "remaining "), eta), h("span", {}, h("span", { class: "dim" }, "waiting for data "), wait), meter),
    h("div", { class: "grid" },
      panel("Loss", "span-6", losses.element), panel("Validation", "span-6", maps.element),
      panel("Log", "span-8", log.element), panel("Host", "span-4", host.element),
      panel("Attempts", "span-8", h("div", { class: "scroll" }, h("table", { "data-testid": "attempts" }, h("thead", {}, h("tr", {},
        ...["#", "Device", "Began", "Committed", "Ended"].map((name) => h("th", { scope: "col" }, name)))), attempts))),
      panel("Settings", "span-4", settings, files), ratePanel));

  let run = null;

  function show(next) {
    run = { ...run, ...next };
    const label = run.name || run.id;
    document.title = `${label} · Fovea`;
    title.textContent = label;
    state.replaceChildren(pill(run.state), ...(run.cause ? [" ", h("span", { class: "dim", "data-testid": "run-cause" }, run.cause)] : []));
    const spec = run.spec ?? {};
    facts.replaceChildren(...[run.id, spec.model, run.gpu_type, `created ${ago(run.created_at)}`,
      run.is_bit_exact === false && run.attempts?.length > 1 ? "not bit-exact: the device or batch changed" : null,
    ].filter(Boolean).map((text) => h("span", { class: text === run.id ? "mono" : null }, text)));
    tiles.map50.value.textContent = metric(run, MAP50);
    tiles.map.value.textContent = metric(run, MAP);
    showRates(run.metrics ?? {});
    tiles.committed.value.textContent = span(seconds(run.committed));
    tiles.committed.under.textContent = `at ${money(run.price_per_hour_micros)} an hour`;
    const estimate = run.estimate;
    if (estimate) {
      tiles.estimate.value.textContent = money(estimate.cost_likely_micros);
      const low = money(estimate.cost_low_micros).replace(" cr", "");
      const text = `${low}–${money(estimate.cost_high_micros)} · ${span(seconds(estimate.time_likely))} · ${estimate.basis}`;
      tiles.estimate.under.textContent = text;
      tiles.estimate.under.title = text;
    }
    const total = number(spec.epochs), done = number(run.epochs_done);
    if (total) {
      epoch.textContent = `${done} / ${total}`;
      bar.style.width = `${Math.min(100, done / total * 100)}%`;
      meter.setAttribute("aria-valuenow", done);
      meter.setAttribute("aria-valuemax", total);
    }
    if (FINAL.includes(run.state) || run.state === "RUN_STATE_PAUSED") eta.textContent = "–";
    attempts.replaceChildren(...(run.attempts ?? []).map(attemptRow));
    settings.replaceChildren(...settingRows(run));
    showActions();
    charge();
  }

  function showRates(metrics) {
    for (const [tile, name] of [["map50", PRECISION], ["map", RECALL]]) {
      if (name in metrics) tiles[tile].under.textContent = `${words(name.split("/")[1])} ${short(Number(metrics[name]))}`;
    }
  }

  function showActions() {
    const act = (label, verb, body, danger) => h("button", {
      type: "button", class: danger ? "danger" : null, "data-testid": `action-${label.toLowerCase()}`,
      onclick: async (event) => {
        event.target.disabled = true;
        try { show((await call("POST", `${base}:${verb}`, body)).run); } catch (error) { notice(error); }
        event.target.disabled = false;
      },
    }, label);
    const buttons = [];
    if (may.edit && run.state === "RUN_STATE_PAUSED") buttons.push(act("Resume", "resume", {}));
    if (may.edit && !FINAL.includes(run.state)) {
      if (run.state !== "RUN_STATE_PAUSED") buttons.push(act("Pause", "stop", { pause: true }));
      buttons.push(act("Stop", "stop", { pause: false }, true));
    }
    actions.replaceChildren(...buttons.flatMap((button) => [button, " "]));
    if (run.model_id && !files.dataset.model) {
      files.dataset.model = run.model_id;
      files.replaceChildren(...["onnx", "weights"].flatMap((format) => [exportButton(run.model_id, format), " "]));
    }
  }

  const charge = debounced(async () => {
    const committed = committedCost(run);
    tiles.cost.value.textContent = money(committed);
    const answer = await call("GET", `/v1/billing/runs/${encodeURIComponent(id)}`).catch((error) => {
      if (error.status === 404) return {};
      throw error;
    });
    if (!answer.charge) return;
    const { charged_micros: charged, held_micros: held, is_settled: settled } = answer.charge;
    tiles.cost.value.textContent = money(Math.max(number(charged), settled ? 0 : committed));
    tiles.cost.under.textContent = settled ? "settled" : `${money(held)} set aside`;
  });

  function value(name, step, amount) {
    const [group, rest] = name.split(/\/(.*)/s);
    if (group === "train") losses.add(name, step, amount, { label: words(rest) });
    else if (group === "val") losses.add(name, step, amount, { label: `val ${words(rest)}`, dashed: true });
    else if (group === "metrics") maps.add(name, step, amount, { label: words(rest) });
    else if (group === "lr") { ratePanel.hidden = false; rates.add(name, step, amount, { label: rest }); }
    showRates({ [name]: amount });
    if (name === MAP50) tiles.map50.value.textContent = short(amount);
    if (name === MAP) tiles.map.value.textContent = short(amount);
  }

  async function load() {
    show((await call("GET", base)).run);
  }
  const refresh = debounced(async () => { await load(); balance(); });

  load().catch((error) => {
    if (error.status === 404) main.replaceChildren(h("p", { class: "center", "data-testid": "not-found" }, "There is no such run in this workspace."));
    else notice(error);
  });
  const live = stream(`${base}/live`, {
    metrics: (batch) => {
      for (const [name, amount] of Object.entries(batch.values ?? {})) value(name, number(batch.step), Number(amount));
    },
    log: (line) => log.add(line),
    sample: (sample) => host.add(sample),
    progress: (progress) => {
      const { epoch: current, epochs, batch_index: index, batch_count: batches } = progress;
      epoch.textContent = `${current} / ${epochs}`;
      bar.style.width = `${Math.min(100, (Math.max(0, current - 1) + (batches ? index / batches : 0)) / (epochs || 1) * 100)}%`;
      rate.textContent = `${short(number(progress.images_per_second))} images/s`;
      eta.textContent = span(number(progress.remaining_seconds));
      wait.textContent = `${Math.round(number(progress.data_wait_share) * 100)} %`;
    },
    run: (next) => { show(next); refresh(); },
    end: () => { live.close(); refresh(); connection("on", "run ended"); },
    problem: (problem) => notice(Object.assign(new Error(problem.detail), { problem })),
  });
  return { close() { live.close(); refresh.cancel(); charge.cancel(); } };
}

const words = (name) => name.replace("(B)", "").replaceAll("_", " ");

function attemptRow(attempt) {
  return h("tr", { "data-testid": "attempt" },
    h("td", {}, String(attempt.fence)),
    h("td", {}, attempt.device || attempt.worker_id),
    h("td", { title: attempt.started_at }, attempt.started_at ? ago(attempt.started_at) : "–"),
    h("td", {}, span(seconds(attempt.committed))),
    h("td", {}, attempt.outcome || "running", attempt.cause ? h("div", { class: "dim" }, attempt.cause) : null));
}

function settingRows(run) {
  const spec = run.spec ?? {};
  const rows = [["dataset version", run.version_id], ["batch", spec.batch], ["image size", spec.image_size],
    ["optimizer", spec.optimizer], ["seed", spec.seed], ["cost cap", number(run.cost_cap_micros) ? money(run.cost_cap_micros) : ""],
    ...Object.entries(spec.arguments ?? {}).sort(), ["model", run.model_id]];
  return rows.filter(([, value]) => value !== undefined && value !== "")
    .flatMap(([name, value]) => [h("dt", {}, name), h("dd", { class: "mono" }, String(value))]);
}

function exportButton(model, format) {
  return h("button", {
    type: "button", "data-testid": `export-${format}`,
    onclick: async () => {
      try {
        const answer = await call("POST", `/v1/models/${encodeURIComponent(model)}:export`, { format });
        const link = h("a", { href: answer.url, download: answer.file_name });
        document.body.append(link);
        link.click();
        link.remove();
      } catch (error) { notice(error); }
    },
  }, `Download ${format}`);
}

function logTail() {
  const element = h("div", { class: "log", tabindex: 0, role: "log", "data-testid": "log-tail", "aria-label": "log" });
  let newest = -1;
  return {
    element,
    add(line) {
      const sequence = number(line.sequence);
      if (sequence <= newest) return;
      newest = sequence;
      const follows = element.scrollTop + element.clientHeight >= element.scrollHeight - 24;
      element.append(h("div", { "data-level": line.level, "data-testid": "log-line" },
        h("time", { datetime: line.at }, line.at ? new Date(line.at).toLocaleTimeString() : ""), h("span", {}, line.message)));
      while (element.childElementCount > LOG_LINES_MAX) element.firstElementChild.remove();
      if (follows) element.scrollTop = element.scrollHeight;
    },
  };
}

function hostPanel() {
  const element = h("div", { class: "hosts", "data-testid": "host" }, h("p", { class: "dim" }, "no samples yet"));
  const gauges = [
    ["cpu", "CPU", (s) => number(s.cpu_utilization), (v) => `${Math.round(v * 100)} %`, () => 1],
    ["memory", "Memory", (s) => number(s.memory_used_bytes), bytes, (s) => number(s.memory_total_bytes)],
    ["process", "Training process", (s) => number(s.process_memory_bytes), bytes, (s) => number(s.memory_total_bytes)],
    ["disk", "Disk", (s) => number(s.disk_read_bytes_per_second) + number(s.disk_write_bytes_per_second), (v) => `${bytes(v)}/s`],
    ["network", "Network", (s) => number(s.network_receive_bytes_per_second) + number(s.network_transmit_bytes_per_second), (v) => `${bytes(v)}/s`],
    ["gpu", "GPU", (s) => s.gpu_utilization, (v) => `${Math.round(v * 100)} %`, () => 1],
    ["gpu-memory", "GPU memory", (s) => s.gpu_memory_used_bytes === undefined ? undefined : number(s.gpu_memory_used_bytes), bytes],
  ];
  let samples = [], timer = null;
  function draw() {
    timer = null;
    const newest = samples.at(-1);
    const shown = gauges.filter(([, , read]) => read(newest) !== undefined);
    element.replaceChildren(...shown.map(([id, label, read, write, ceiling]) => h("div", { class: "host" },
      h("div", { class: "label" }, label, h("b", { "data-testid": `host-${id}` }, write(read(newest)))),
      spark(samples.map(read), ceiling?.(newest) || null))));
  }
  return {
    element,
    add(sample) {
      samples = [...samples.slice(1 - SAMPLES_MAX), sample];
      timer ??= setTimeout(draw, 250);
    },
  };
}

// ---- start -----------------------------------------------------------------------------------

async function route() {
  view.close();
  view = { close() {} };
  const path = location.hash.replace(/^#/, "") || "/runs";
  if (path === "/sign-in") { view = signInView(); return; }
  try {
    if (document.getElementById("bar").hidden) await frame();
  } catch (error) {
    notice(error);
    return;
  }
  const run = path.match(/^\/runs\/(.+)$/);
  view = run ? runView(decodeURIComponent(run[1])) : runsView();
}

const themes = [null, "dark", "light"];
function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  document.getElementById("theme").replaceChildren(h("span", { class: "wide" }, "Theme: "), theme ?? "auto");
}
document.getElementById("theme").addEventListener("click", () => {
  const next = themes[(themes.indexOf(document.documentElement.dataset.theme ?? null) + 1) % themes.length];
  localStorage.setItem("theme", next ?? "");
  setTheme(next);
});
document.getElementById("sign-out").addEventListener("click", async () => {
  // Nothing may ask on behalf of who has gone.
  view.close();
  view = { close() {} };
  await call("DELETE", "/v1/session").catch(notice);
  document.getElementById("bar").hidden = true;
  signedOut();
});
setTheme(localStorage.getItem("theme") || null);
addEventListener("hashchange", route);
route();
