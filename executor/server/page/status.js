"use strict";
// Asks the server twice a second where every request is, and shows it. No library, nothing from elsewhere.

const at = (id) => document.getElementById(id);
const key = () => sessionStorage.getItem("key") || "";
const base = new URL(".", document.baseURI);
let before = null;

function make(tag, text, style) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (style) made.className = style;
  return made;
}

async function ask(path, options = {}) {
  const headers = { ...options.headers, ...(key() ? { authorization: `Bearer ${key()}` } : {}) };
  const response = await fetch(new URL(path, base), { ...options, headers });
  if (response.status === 401) {
    at("key-form").hidden = false;
    throw new Error("This server asks for an API key.");
  }
  if (!response.ok) throw new Error((await response.json()).error.message);
  return response;
}

function numbers(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const match = /^([a-z_]+:[a-z_]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = Object.fromEntries([...(match[2] || "").matchAll(/(\w+)="([^"]*)"/g)].map((m) => [m[1], m[2]]));
    (found[match[1]] ||= []).push([labels, Number(match[3])]);
  }
  return found;
}

const total = (found, name) => (found[name] || []).reduce((sum, [, value]) => sum + value, 0);
const short = (value, digits = 2) => (Number.isFinite(value) ? value.toFixed(digits) : "–");

function showFacts(facts) {
  at("spec").textContent = facts.spec;
  at("about").textContent = facts.about;
  const parameters = Object.entries(facts.params).map(([name, value]) => `${name} = ${value}`);
  const chips = [facts.verdict, `model ${facts.model}`, ...parameters, `table ${facts.digest.slice(0, 12)}`, facts.system_fingerprint];
  at("facts").replaceChildren(...chips.map((text) => make("span", text)));
  const policies = new Set([...facts.policies, facts.policy.policy]);
  at("policy").replaceChildren(...[...policies].map((name) => make("option", name)));
  at("policy").value = facts.policy.policy;
  at("states").replaceChildren(
    ...facts.states.filter((state) => state.name !== "end").map((state) => {
      const made = make("div");
      made.dataset.state = state.name;
      made.append(make("b", "0"), make("span", state.name, "note"));
      return made;
    }),
  );
}

function showStates(state) {
  const counts = { wait: state.waiting + state.preempted };
  for (const request of state.live) counts[request.state] = (counts[request.state] || 0) + 1;
  for (const made of at("states").children) {
    const count = counts[made.dataset.state] || 0;
    made.firstChild.textContent = count;
    made.classList.toggle("busy", count > 0);
  }
}

const allOf = (pages) => pages.committed + pages.tentative + pages.cached + pages.free;

function partsOf(pages) {
  return ["committed", "tentative", "cached"].map((kind) => {
    const made = make("i", undefined, kind);
    made.style.width = `${(100 * pages[kind]) / (allOf(pages) || 1)}%`;
    return made;
  });
}

function showPages(pages) {
  at("pages").replaceChildren(...partsOf(pages));
  at("pages-text").textContent = `${pages.committed} committed, ${pages.tentative} taken for the next round, ${pages.cached} cached, ${pages.free} free of ${allOf(pages)}`;
}

function showReplicas(replicas) {
  at("replicas").hidden = !replicas.length;
  for (const cell of document.querySelectorAll("th.replica")) cell.hidden = !replicas.length;
  at("replica-rows").replaceChildren(
    ...replicas.map((replica) => {
      const state = make("span", replica.up ? "up" : "lost", `chip ${replica.up ? "up" : "lost"}`);
      const bar = make("div", undefined, "bar");
      if (replica.pages) bar.append(...partsOf(replica.pages));
      const held = replica.pages ? `${replica.pages.committed + replica.pages.tentative} of ${allOf(replica.pages)}` : "–";
      const row = make("tr");
      for (const part of [replica.replica, state, replica.running, bar, held, replica.process ?? "–", replica.life]) {
        const cell = make("td");
        cell.append(part);
        row.append(cell);
      }
      return row;
    }),
  );
}

const shown = (id) => (id.length > 20 ? `${id.slice(0, 18)}…` : id);

function showLive(live) {
  const cells = (request) => [
    request.index ? `${shown(request.id)} #${request.index}` : shown(request.id),
    ...("replica" in request ? [request.replica] : []), request.state, request.path.join(" → "),
    request.columns.prompt, request.columns.emitted, request.columns.kv, request.pages, request.rounds,
    short(request.acceptance_length ?? NaN), `${short(request.seconds, 1)} s`,
  ];
  at("live").replaceChildren(
    ...live.slice(0, 100).map((request) => {
      const row = make("tr");
      row.title = request.id;
      const way = "replica" in request ? 3 : 2;
      row.append(...cells(request).map((value, index) => make("td", value, index === way ? "path" : undefined)));
      return row;
    }),
  );
  at("nobody").textContent = "No request is live.";
  at("nobody").hidden = live.length > 0;
}

function showNumbers(state, found) {
  const now = { time: performance.now() / 1000, tokens: total(found, "vllm:generation_tokens_total") };
  const rate = before ? (now.tokens - before.tokens) / (now.time - before.time) : NaN;
  before = now;
  const accepted = total(found, "vllm:spec_decode_num_accepted_tokens_total");
  const drafted = total(found, "vllm:spec_decode_num_draft_tokens_total");
  const cards = [
    ["live", state.live.length], ["waiting", state.waiting + state.preempted], ["tokens a second", short(rate, 1)],
    ["tokens a round", short(total(found, "fsm_spec:emitted_tokens_total") / total(found, "fsm_spec:rounds_total"))],
    ["drafts accepted", drafted ? `${short((100 * accepted) / drafted, 0)} %` : "–"],
    ["KV in use", `${short((100 * (state.pages.committed + state.pages.tentative)) / allOf(state.pages), 0)} %`],
    ["preemptions", total(found, "vllm:num_preemptions_total")],
  ];
  at("cards").replaceChildren(
    ...cards.map(([name, value]) => {
      const made = make("div");
      made.append(make("b", value), make("span", name));
      return made;
    }),
  );
}

// Bars are as high as their share of the first place, which counts the most; what they are of all rounds stands above.
function showPlaces(found) {
  const places = new Map();
  for (const [labels, value] of found["vllm:spec_decode_num_accepted_tokens_per_pos_total"] || []) {
    const place = Number(labels.position);
    places.set(place, (places.get(place) || 0) + value);
  }
  const rounds = total(found, "vllm:spec_decode_num_drafts_total");
  const most = Math.max(0, ...places.values());
  if (!most) {
    const drafted = total(found, "vllm:spec_decode_num_draft_tokens_total");
    const why = drafted ? `None of ${drafted} drafts was accepted yet.` : "Nothing was drafted yet.";
    at("places").replaceChildren(make("span", why, "note"));
    return;
  }
  at("places").replaceChildren(
    ...[...places].sort((one, other) => one[0] - other[0]).map(([place, value]) => {
      const made = make("div");
      const bar = make("i");
      bar.style.height = `${(70 * value) / most}%`;
      bar.title = `${value} drafts in ${rounds} rounds`;
      made.append(make("span", rounds ? `${short((100 * value) / rounds, value < rounds / 10 ? 1 : 0)} %` : value), bar, make("span", place + 1));
      return made;
    }),
  );
}

async function look() {
  try {
    if (!at("policy").options.length) {
      showFacts(await (await ask("v1/fsm")).json());
      at("diagram").innerHTML = await (await ask("v1/fsm/diagram")).text();
    }
    // Counters come at once; where requests are is known only between two iterations, which may take a while.
    const found = numbers(await (await ask("metrics")).text());
    showPlaces(found);
    const state = await (await ask("v1/fsm/requests")).json();
    showStates(state);
    showPages(state.pages);
    showReplicas(state.replicas || []);
    showLive(state.live);
    showNumbers(state, found);
    at("fault").hidden = true;
    at("key-form").hidden = true;
  } catch (error) {
    at("fault").textContent = error.message;
    at("fault").hidden = false;
    // What has shown nothing yet says why.
    for (const each of document.querySelectorAll(".waiting")) each.textContent = error.message;
  }
  setTimeout(look, 500);
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", at("key").value);
});

at("policy").addEventListener("change", async (event) => {
  const body = JSON.stringify({ policy: event.target.value });
  try {
    const headers = { "content-type": "application/json" };
    const chosen = await (await ask("v1/fsm/policy", { method: "PUT", headers, body })).json();
    at("policy-answer").textContent = `${chosen.policy} is in force`;
  } catch (error) {
    at("policy-answer").textContent = error.message;
  }
});

look();
