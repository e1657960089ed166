// Warnings of one's own workspaces with Keep and Extend, and why the last of each server ended, on every page of the hub.
(() => {
  "use strict";
  const { duration, element, poll, ready, service, setText } = window.gpuspawner;
  const root = document.getElementById("gs-banner");
  const list = document.getElementById("gs-warnings");
  const api = service(root);
  const notes = new Map(); // by key: built once, then changed in place, so that the focus stays

  const newest = (workspaces, server) => workspaces.find((one) => one.server === server); // the live one comes first
  const name = (one) => (one.server ? `Workspace ${one.server}: ` : "");
  const button = (text, act, kind = "") => {
    const made = element("button", { type: "button", className: `gs-button gs-small ${kind}`, textContent: text });
    made.addEventListener("click", async () => {
      made.disabled = true;
      try {
        await act();
      } catch (error) {
        made.after(element("span", { className: "gs-hint", textContent: error.message }));
      } finally {
        made.disabled = false;
      }
      await look();
    });
    return made;
  };
  const act = (one, action) => () => api.call(`workspaces/${one.id}/${action}`, {});
  const more = (one, text) =>
    element("a", { href: one.page, className: "gs-button gs-small", textContent: text });

  const warning = (one) => {
    const left = element("span", { className: "gs-left" });
    left.setAttribute("aria-hidden", "true"); // the text says when; a countdown read aloud every second says nothing else
    const buttons = element("div", { className: "gs-actions gs-push" });
    const { each_seconds: keep, left: times } = one.keep;
    if (one.warning.actions.includes("keep")) {
      buttons.append(button(`Keep for ${duration(keep)}`, act(one, "keep"), "gs-primary"));
      buttons.append(element("small", { className: "gs-quiet", textContent: `${times} ${times === 1 ? "keep" : "keeps"} left` }));
    }
    if (one.warning.actions.includes("extend")) {
      buttons.append(button(`Extend by ${duration(one.extend.each_seconds)}`, act(one, "extend"), "gs-primary"));
    }
    if (one.warning.actions.includes("move")) {
      buttons.append(button("Move to another GPU", act(one, "move"), "gs-primary"));
    }
    buttons.append(more(one, "Details"));
    const text = element("span", { className: "gs-text", textContent: name(one) + one.warning.text });
    return element("div", { className: "gs-note gs-warn" }, element("p", {}, text, " ", left), buttons);
  };

  const ended = (one) => {
    const text = `${one.end.why} `;
    const why = more(one, "See why");
    why.addEventListener("click", () => act(one, "seen")().catch(() => {}));
    const lead = element("b", { textContent: one.server ? `Workspace ${one.server} ended. ` : "Your last workspace ended. " });
    return element("div", { className: "gs-note" }, element("p", {}, lead, text), element("div", { className: "gs-actions gs-push" }, why, button("Got it", act(one, "seen"))));
  };

  const answer = (one) => {
    const { answer: said, answered_by: by } = one.end.dispute;
    const page = more(one, "See the answer");
    page.addEventListener("click", () => act(one, "seen")().catch(() => {}));
    const lead = element("b", { textContent: `${name(one)}${by} answered what you called wrong. ` });
    return element("div", { className: "gs-note" }, element("p", {}, lead, `“${said}”`), element("div", { className: "gs-actions gs-push" }, page, button("Got it", act(one, "seen"))));
  };

  // What there is to tell now: [key, build, workspace].
  const told = (workspaces) => {
    const all = workspaces.filter((one) => one.warning).map((one) => {
      const { kind, actions } = one.warning;
      return [`${one.id} ${kind} ${actions} ${one.keep.left} ${one.extend.each_seconds}`, warning, one];
    });
    const answered = workspaces.filter(({ end }) => end?.dispute?.answer && !end.seen);
    all.push(...answered.map((one) => [`${one.id} answered`, answer, one]));
    const notice = document.getElementById("gs-ended"); // this page tells of an end itself
    for (const one of workspaces) {
      if (!one.end || one.end.seen || one.end.by === one.user || one.end.dispute) continue; // they know of it
      if (one !== newest(workspaces, one.server)) continue;
      const here = notice?.dataset.lease === one.id;
      if (!here) all.push([`${one.id} ended`, ended, one]);
      else if (notice.dataset.read) act(one, "seen")().catch(() => {}); // this page is about nothing else
    }
    return all;
  };

  // Home's lines: of each server the newest lease, which is not that of the page's load once it was started again.
  const lines = (workspaces) => {
    for (const line of document.querySelectorAll("p[data-server]")) {
      const one = newest(workspaces, line.dataset.server);
      if (!one) continue;
      const idle = one.idle?.because ? `${one.idle.words[0].toUpperCase()}${one.idle.words.slice(1)}.` : "";
      setText(line.querySelector("[data-words]"), one.words);
      setText(line.querySelector("[data-more]"), one.queue?.sentence ?? idle);
      const until = line.querySelector("[data-until]");
      setText(until, `, until ${one.ends_words ?? ""}`);
      until.hidden = one.phase !== "running" || !one.ends_words; // what stops, or is about to, does not stay until then
      line.querySelector("a").href = one.page;
    }
  };

  let latest = null; // one's workspaces as last seen
  let came = null; // what tells in the title that one of them came: a page about one of them does so itself
  document.addEventListener("DOMContentLoaded", async () => {
    if (document.getElementById("gs-progress")) return;
    came = await ready(root.dataset.prefix);
    if (latest) came?.see(latest); // who leaves the page before the next look has waited all the same
    came?.watch(async () => (await api.call("workspaces")).workspaces);
  });
  // The tab's icon shows by its shape the state that needs the user most. The service has its file.
  const showIcon = (workspaces) => {
    const phases = new Set(workspaces.map((one) => one.phase));
    const state = phases.has("reclaiming") ? "-warned" : phases.has("queued") || phases.has("parked") ? "-waiting"
      : ["running", "starting", "reserved"].some((phase) => phases.has(phase)) ? "-running" : "";
    const icon = document.querySelector('link[rel="icon"]');
    const href = `${root.dataset.prefix}static/gpu${state}.svg`;
    if (icon?.getAttribute("href") !== href) Object.assign(icon ?? {}, { type: "image/svg+xml", href });
  };

  let ends = [];
  const look = async () => {
    let workspaces;
    try {
      ({ workspaces } = await api.call("workspaces?ended=5"));
    } catch {
      return; // what stands there was true; the next look tells
    }
    latest = workspaces;
    lines(workspaces);
    came?.see(workspaces);
    showIcon(workspaces);
    const now = told(workspaces);
    const keys = now.map(([key]) => key);
    for (const [key, note] of notes) {
      if (!keys.includes(key)) {
        note.remove();
        notes.delete(key);
      }
    }
    ends = [];
    for (const [key, build, one] of now) {
      if (!notes.has(key)) {
        notes.set(key, build(one));
        list.append(notes.get(key));
      }
      const note = notes.get(key);
      if (one.warning) {
        setText(note.querySelector(".gs-text"), name(one) + one.warning.text);
        const at = one.warning.ends_at;
        ends.push([note.querySelector(".gs-left"), at === null ? null : Date.now() / 1000 + at - one.now]);
      }
    }
  };

  setInterval(() => {
    for (const [node, at] of ends) setText(node, at === null ? "" : `${duration(at - Date.now() / 1000)} left.`);
  }, 1000);
  poll(5, look);
})();
