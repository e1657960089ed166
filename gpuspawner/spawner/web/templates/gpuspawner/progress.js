// A start under way: its sentence, its steps, and on to the workspace when it is ready. A hub that restarts meanwhile
// ends the hub's own event stream: this page asks instead, until the hub is back and says what became of the start.
(() => {
  "use strict";
  const { duration, element, poll, ready, service, setText } = window.gpuspawner;
  const root = document.getElementById("gs-progress");
  const { server, state, user } = root.dataset;
  const api = service(root);
  const sentence = document.getElementById("gs-sentence");
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

  // The steps of a start: [what it is, where it stands, how long it took or takes].
  const plan = (one) => {
    const waits = one.queue !== null;
    const gpus = one.request.count ? "GPU" : "Place";
    const place = waits && one.queue.place ? `, place ${one.queue.place}${one.queue.of ? ` of ${one.queue.of}` : ""}` : "";
    const served = one.running_at !== null;
    const starting = one.granted_at !== null && !waits;
    return [
      [gpus + place, waits ? NOW : DONE, seconds(one.asked_at, waits ? null : one.granted_at)],
      ["Server", starting ? (served ? DONE : NOW) : LATER, starting ? seconds(one.granted_at, one.running_at) : ""],
      ["Its pages answer", served ? NOW : LATER, served ? seconds(one.running_at, null) : ""],
    ];
  };

  const draw = () => {
    if (!own || own.end) return;
    plan(own).forEach(([what, mark, time], index) => {
      const row = steps.children[index] ?? steps.appendChild(element(
        "li", {},
        element("span", { className: "gs-mark" }),
        element("span", { className: "gs-what" }),
        element("span", { className: "gs-free" }),
      ));
      [mark, what, time].forEach((text, part) => setText(row.children[part], text));
      if (mark === NOW) row.setAttribute("aria-current", "step");
      else row.removeAttribute("aria-current");
    });
  };

  // While it waits, one click for each other GPU: taken too, or no more. Built anew only where that changes.
  const consent = document.getElementById("gs-consent");
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
    consent.replaceChildren(...others.map(({ kind, title, words, consented }) => {
      const text = consented ? `Do not take ${title}` : `Also take ${title}${words ? ` (${words})` : ""}`;
      const button = element("button", { type: "button", className: "gs-button", textContent: text });
      button.dataset.kind = kind;
      button.addEventListener("click", async () => {
        if (asking) return; // not disabled meanwhile: it would lose the focus
        asking = true;
        const substitutes = consented ? taken.filter((one) => one !== kind) : [...taken, kind];
        try {
          await api.call(`workspaces/${own.id}/consent`, { substitutes });
        } catch (error) {
          setText(sentence, error.message);
        }
        asking = false;
        await look();
      });
      return button;
    }));
    [...consent.children].find(({ dataset }) => dataset.kind === focused)?.focus();
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
    const { likely_start_at: likely, latest_start_at: latest } = queue ?? {};
    const words = [likely ? `Probable start ${clock(likely)}` : "", latest ? `latest start ${clock(latest)}` : ""].filter(Boolean);
    const node = document.getElementById("gs-when");
    node.hidden = !words.length;
    const text = words.join(", ");
    setText(node, text && `${text[0].toUpperCase()}${text.slice(1)}, unless somebody extends. Times are in ${zone}.`);
  };

  const look = async () => {
    try {
      const { workspaces } = await api.call("workspaces");
      own = workspaces.find((one) => one.server === server) ?? null;
      // The service is back, or the workspace ended: the hub's next page knows, and says why.
      if (root.dataset.away || (!own && root.dataset.lease)) window.location.reload();
      if (!own) return;
      offset = own.now - Date.now() / 1000;
      setText(sentence, own.queue ? own.queue.sentence : `${own.words}.`);
      document.getElementById("gs-page").href = own.page;
      offerOthers();
      told?.see([own]);
      when(own.queue);
      setText(withdraw, own.queue ? "Withdraw from the queue" : "Stop this start");
      draw();
    } catch (error) {
      own = null;
      const why = error.status ? error.message : "The GPU service does not answer.";
      if (!withdrawn) setText(sentence, `${why} Your place, if you have one, stays; this page looks again.`);
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
    if (own && EXPECTED[state].includes(own.phase)) return;
    try {
      if ((await hubState()) !== state) window.location.reload();
    } catch {
      setText(sentence, "The hub does not answer at this moment; it may be restarting. Your place stays, and this page looks again.");
    }
  };

  const stop = async () => {
    withdraw.disabled = withdrawn = true;
    setText(sentence, "Withdrawing…");
    try {
      if (own) {
        await api.call(`workspaces/${own.id}/stop`, {});
      } else {
        await fetch(`${hubApi}/${server ? `servers/${encodeURIComponent(server)}` : "server"}`, { method: "DELETE", headers });
      }
    } catch (error) {
      setText(sentence, error.message);
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
    const button = element("button", { type: "button", className: "gs-button", textContent: "Stop that one" });
    const ask = element("p", {}, button, element("span", { textContent: " Its running kernels are lost; files stay." }));
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        await api.call(`workspaces/${lease}/stop`, {});
        setText(said, "That one is ending. This start goes on by itself once it has.");
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
      offerStop(event);
      if (event.ready || event.failed) {
        events.close();
        // The hub then shows the server, or why there is none: to somebody who looks. A hidden tab that opens it would
        // claim it for nobody; once it is seen, `follow` goes on.
        if (!document.hidden) window.location.reload();
      }
    });
  }

  withdraw.hidden = false;
  setText(withdraw, "Withdraw");
  withdraw.addEventListener("click", stop);
  setInterval(draw, 1000);
  poll(2, look);
  poll(3, follow);
  ready(root.dataset.prefix).then((one) => {
    told = one;
    one?.offer(document.getElementById("gs-notify"));
    one?.watch(async () => (await api.call("workspaces")).workspaces.filter((found) => found.server === server));
  });
  window._jupyterhub_page_loaded = true; // as the hub's own page says to its tests
})();
