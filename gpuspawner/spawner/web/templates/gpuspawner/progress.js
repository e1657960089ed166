// A start under way: its sentence, its steps, and on to the workspace when it is ready. A hub that restarts meanwhile
// ends the hub's own event stream: this page asks instead, until the hub is back and says what became of the start.
(() => {
  "use strict";
  const { duration, element, poll, ready, service, setText } = window.gpuspawner;
  const root = document.getElementById("gs-progress");
  const { server, state, user } = root.dataset;
  const api = service(root);
  const part = (name) => document.getElementById(`gs-${name}`);
  const sentence = part("sentence");
  const say = (text, title) => {
    const [first, ...rest] = title ? [title, text] : text.split(/(?<=[.!?]) (?!Allowed: )(?=[A-Z“'"])/);
    setText(sentence.querySelector("h2"), first);
    setText(sentence.querySelector("p"), rest.join(" "));
  };
  const ENDINGS = { one: "st", two: "nd", few: "rd", other: "th" };
  const ordinal = (number) => number + ENDINGS[new Intl.PluralRules("en", { type: "ordinal" }).select(number)];
  const place = ({ place: number, of }) => (number ? `You are ${ordinal(number)}${of ? ` of ${of}` : ""} in line` : "You are in line");
  const steps = document.getElementById("gs-steps");
  const log = document.getElementById("gs-log");
  const withdraw = document.getElementById("gs-withdraw");
  const hubApi = `${window.jhdata.base_url}api/users/${encodeURIComponent(user)}`;
  const headers = { "X-XSRFToken": window.jhdata.xsrf_token };
  const DONE = "done", NOW = "now", LATER = "later";
  let own = null;
  let offset = 0; // the service's clock less this browser's, seconds
  let withdrawn = false;

  const seconds = (from, to) => (from === null ? "" : duration((to ?? Date.now() / 1000 + offset) - from));

  // The steps of a start: what each one is called, more about it, where it stands, and how long it took or takes.
  const plan = (one) => {
    const gpus = one.request.count;
    const served = one.running_at !== null;
    const assigned = one.granted_at !== null;
    const what = gpus > 1 ? `${gpus} GPUs` : gpus ? "GPU" : "Place on a node";
    return [
      [assigned ? `${what} assigned` : "Checking the request", "", assigned ? DONE : NOW, seconds(one.asked_at, one.granted_at)],
      [served ? "Server started" : "Starting the server", "", assigned ? (served ? DONE : NOW) : LATER, assigned ? seconds(one.granted_at, one.running_at) : ""],
      ["Opening JupyterLab", "", served ? NOW : LATER, served ? seconds(one.running_at, null) : ""],
    ];
  };

  const MARKS = [DONE, NOW, LATER];
  const mark = (state) => part("marks").content.children[MARKS.indexOf(state)].cloneNode(true);
  const draw = () => {
    if (!own || own.end || own.queue) return;
    plan(own).forEach(([what, more, state, time], index) => {
      const row = steps.children[index] ?? steps.appendChild(element("li", {}, mark(state),
        element("div", {}, element("p", {}, element("b")), element("p", { className: "gs-quiet" })), element("span")));
      if (row.dataset.mark !== state) {
        row.dataset.mark = state;
        row.firstElementChild.replaceWith(mark(state));
        row.className = state === DONE ? "gs-done" : "";
      }
      setText(row.querySelector("b"), what);
      setText(row.querySelector(".gs-quiet"), more);
      setText(row.lastElementChild, time);
      if (state === NOW) row.setAttribute("aria-current", "step");
      else row.removeAttribute("aria-current");
    });
  };

  // What stands around the sentence: a request that waits has another column.
  const show = (state) => {
    const chip = part("states").content.querySelector(`[data-of=${state}]`).firstElementChild;
    if (part("state").textContent !== chip.textContent) part("state").replaceChildren(chip.cloneNode(true));
    const waits = state === "waiting";
    if (state === "unknown") return;
    part("columns").className = waits ? "gs-split" : "gs-stack";
    part("aside").hidden = part("change").hidden = !waits;
    part("stays").hidden = waits;
    steps.hidden = waits;
    setText(withdraw.lastElementChild, waits ? "Withdraw" : "Cancel start");
  };

  // While the request waits, one button accepts each other GPU, or no longer does. Rebuilt only when it changes.
  const consent = part("consent");
  let shown = "";
  let asking = false;
  const offerOthers = () => {
    const others = own?.queue ? own.request.substitutes : [];
    const now = JSON.stringify(others);
    consent.hidden = !others.length;
    if (now === shown) return;
    shown = now;
    const taken = others.filter(({ consented }) => consented).map(({ kind }) => kind);
    const focused = document.activeElement?.dataset.kind;
    consent.querySelector("ul").replaceChildren(...others.map(({ kind, title, words, consented }) => {
      const button = element("button", { type: "button", className: "gs-button", textContent: `${consented ? "Do not accept" : "Accept"} ${title}` });
      button.dataset.kind = kind;
      button.addEventListener("click", async () => {
        if (asking) return; // not disabled meanwhile: it would lose the focus
        asking = true;
        const substitutes = consented ? taken.filter((one) => one !== kind) : [...taken, kind];
        try {
          await api.call(`workspaces/${own.id}/consent`, { substitutes });
        } catch (error) {
          say(error.message);
        }
        asking = false;
        await look();
      });
      const said = element("div", {}, element("p", {}, element("b", { textContent: consented ? `You also accept ${title}` : `Also accept ${title}` })), element("p", { className: "gs-quiet", textContent: words }));
      return element("li", {}, part("marks").content.children[3].cloneNode(true), said, button);
    }));
    [...consent.querySelectorAll("button")].find(({ dataset }) => dataset.kind === focused)?.focus();
  };

  let told = null; // what tells that it came
  const { zone } = root.dataset; // the service's, as its sentences have it
  const inZone = (at, parts) => new Date(at * 1000).toLocaleString("en-GB", { timeZone: zone, ...parts });
  const day = (at) => inZone(at, { weekday: "short", day: "2-digit", month: "short" }).replace(",", "");
  const clock = (at) => {
    const date = day(at) === day(Date.now() / 1000 + offset) ? "" : `${day(at)} `;
    return date + inZone(at, { hour: "2-digit", minute: "2-digit" });
  };
  const when = (queue) => {
    const at = { from: queue?.earliest_start_at, likely: queue?.likely_start_at, to: queue?.range_end_at };
    const none = !at.from || !at.to;
    part("times").hidden = part("when").hidden = none;
    if (none) return;
    for (const [name, time] of Object.entries(at)) {
      const row = part("times").querySelector(`[data-when=${name}]`);
      row.hidden = !time || (name === "from" && clock(at.from) === clock(at.to));
      if (time) setText(row.querySelector("b"), clock(time));
    }
    const now = Date.now() / 1000 + offset;
    const [span, tick] = part("when").querySelector(".gs-window").children;
    const left = (time) => `${Math.min(98, Math.max(2, (100 * (time - now)) / Math.max(1, at.to - now)))}%`;
    span.style.left = left(at.from);
    tick.hidden = !at.likely;
    if (at.likely) tick.style.left = left(at.likely);
  };
  // The requests that wait for the same kind of GPU. Others have no names here.
  const line = async () => {
    if (!own?.queue || !own.request.gpu) {
      part("line").hidden = true;
      return;
    }
    const { queue } = await api.call("queue");
    const same = queue.filter((one) => one.gpu === own.request.gpu).slice(0, 8);
    part("line").hidden = !same.length;
    const list = part("line").querySelector("ol");
    const rows = same.map((one) => {
      const who = element("p", {}, one.mine ? element("b", { textContent: "You" }) : "Someone", `, ${one.asked}`);
      const since = element("p", { className: "gs-quiet", textContent: `Waiting for ${duration(own.now - one.asked_at)}` });
      const row = element("li", {}, element("b", { textContent: one.place ?? "–" }), element("div", {}, who, since));
      if (one.mine) row.setAttribute("aria-current", "true");
      return row;
    });
    if (list.textContent !== rows.map((row) => row.textContent).join("")) list.replaceChildren(...rows);
  };
  const precede = (text) => {
    const lines = text ? text.split(/(?<=[.!?]) (?=[A-Z“'"])/) : [];
    part("precedence").hidden = !lines.length;
    const list = part("precedence").querySelector("ul");
    if (list.textContent !== lines.join("")) {
      const icon = () => element("span", { innerHTML: '<svg class="gs-icon" aria-hidden="true"><use href="#i-user"/></svg>' }).firstChild;
      list.replaceChildren(...lines.map((one) => element("li", {}, icon(), element("p", { textContent: one }))));
    }
  };

  const look = async () => {
    try {
      const { workspaces } = await api.call("workspaces");
      own = workspaces.find((one) => one.server === server) ?? null;
      // The service is back, or the workspace ended: the hub's next page knows, and says why.
      if (root.dataset.away || (!own && root.dataset.lease)) window.location.reload();
      if (!own) return;
      offset = own.now - Date.now() / 1000;
      if (own.queue) say(own.queue.sentence.replace(/ You are \w+ in line\./, ""), place(own.queue));
      else say(`${own.words}.`);
      part("page").href = own.page;
      setText(part("page"), "Details");
      show(own.queue ? "waiting" : "starting");
      offerOthers();
      told?.see([own]);
      when(own.queue);
      precede(own.queue?.precedence);
      await line().catch(() => {});
      draw();
    } catch (error) {
      own = null;
      const why = error.status ? error.message : "The GPU service does not answer.";
      if (withdrawn) return;
      say(`${why} Your place in line is kept. This page tries again by itself.`);
      show("unknown");
    }
  };

  // What the hub says of the server, in the words of data-state.
  const hubState = async () => {
    const response = await fetch(hubApi, { headers, cache: "no-store", signal: AbortSignal.timeout(8000) });
    if (response.status === 401 || response.status === 403) return "signed out";
    if (!response.ok) throw new Error("The hub does not answer.");
    const found = (await response.json()).servers?.[server];
    if (found?.ready) return "ready";
    return found?.pending ? "pending" : "stopped";
  };

  // Reload as soon as the hub would show another page than this one. The event stream alone does not tell: the proxy
  // keeps it open when the hub dies. The workspace's phase does, while it is one that goes with this page.
  const EXPECTED = { pending: ["queued", "reserved", "starting"], stopped: ["parked"] };
  const follow = async () => {
    if (part("withdraw-dialog").open) return; // the question stays until it is answered
    if (own && EXPECTED[state].includes(own.phase)) return;
    try {
      if ((await hubState()) !== state) window.location.reload();
    } catch {
      say("The hub does not answer. It may be restarting. Your place in line is kept. This page tries again by itself.");
    }
  };

  const stop = async () => {
    part("withdraw-dialog").close();
    withdraw.disabled = withdrawn = true;
    say("Withdrawing…");
    try {
      if (own) {
        await api.call(`workspaces/${own.id}/stop`, {});
      } else {
        await fetch(`${hubApi}/${server ? `servers/${encodeURIComponent(server)}` : "server"}`, { method: "DELETE", headers });
      }
    } catch (error) {
      say(error.message);
      withdraw.disabled = withdrawn = false;
      return;
    }
    if (state === "stopped") window.location.reload();
  };

  // Another workspace of theirs has the home: said above the log, with what stops that one.
  const blocked = document.getElementById("gs-blocked");
  const offerStop = ({ message, stop: lease }) => {
    blocked.hidden = !lease;
    if (!lease) return;
    const said = element("p", { textContent: message });
    said.setAttribute("role", "status");
    const button = element("button", { type: "button", className: "gs-button gs-danger", textContent: "Stop that one" });
    const ask = element("p", {}, button, element("span", { textContent: " You lose its running kernels. Your files stay." }));
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        await api.call(`workspaces/${lease}/stop`, {});
        setText(said, "That one is stopping. This start continues by itself then.");
        ask.remove();
      } catch (error) {
        setText(said, error.message);
        button.disabled = false;
      }
    });
    blocked.replaceChildren(said, ask);
  };

  if (root.dataset.events) {
    const events = new EventSource(root.dataset.events);
    events.addEventListener("message", ({ data }) => {
      const event = JSON.parse(data);
      // What has links is HTML of the spawner's own, escaped: the hub's page shows it likewise.
      if (event.message) log.append(element("li", event.html_message ? { innerHTML: event.html_message } : { textContent: event.message }));
      setText(part("log-count"), `${log.children.length} ${log.children.length === 1 ? "entry" : "entries"}`);
      offerStop(event);
      if (event.ready || event.failed) {
        events.close();
        // The hub then shows the server, or the reason why it did not start. A hidden tab must not open the workspace:
        // its user has not come. `follow` goes on once the tab is seen.
        if (!document.hidden) window.location.reload();
      }
    });
  }

  withdraw.hidden = false;
  withdraw.addEventListener("click", () => (part("aside").hidden ? stop() : part("withdraw-dialog").showModal()));
  part("withdraw-do").addEventListener("click", stop);
  setInterval(draw, 1000);
  poll(2, look);
  poll(3, follow);
  ready(root.dataset.prefix).then((one) => {
    told = one;
    one?.offer(part("notify"));
    one?.watch(async () => (await api.call("workspaces")).workspaces.filter((found) => found.server === server));
  });
  window._jupyterhub_page_loaded = true; // as the hub's own page says to its tests
})();
