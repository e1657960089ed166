// Helpers of every hub page: asking the service, and asking again while the page is seen.
window.gpuspawner ??= (() => {
  "use strict";
  const TICKET_MILLISECONDS = 30_000; // half of what a ticket is good for

  // Text as everywhere else (show_duration): "45 s", "8 min 31 s", "26 min", "1 h 30 min".
  const duration = (seconds) => {
    let rest = seconds < 600 ? Math.max(0, Math.round(seconds)) : 60 * Math.round(seconds / 60);
    const parts = [];
    for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
      if (parts.length < 2 && (rest >= size || (unit === "s" && !parts.length))) {
        parts.push(`${Math.floor(rest / size)} ${unit}`);
      } else if (parts.length) break;
      rest %= size;
    }
    return parts.filter((part, index) => index === 0 || !part.startsWith("0 ")).join(" ");
  };

  const element = (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };

  // Change a text only if it differs, so that screen readers read only changes.
  const setText = (node, text) => {
    if (node && node.textContent !== text) node.textContent = text;
  };

  // One notice on a page whose user is signed out, with the way back: to `next()`, where an element of it knows better.
  const SIGNED_OUT = "gs-signed-out";
  let signedOut = false; // of all that asks on this page: the hub knows its cookie no more
  const tellSignedOut = (root, next) => {
    let note = document.getElementById(SIGNED_OUT);
    if (!note) {
      const link = element("a", { textContent: "Sign in again" });
      note = element("p", { id: SIGNED_OUT, className: "gs-note gs-warn" }, element("span", {}, "You are signed out. This page may be out of date. ", link, " to go on. You come back to this page."));
      note.setAttribute("role", "alert");
      (root.querySelector(".gs-stack") ?? root).prepend(note);
    }
    const link = note.querySelector("a");
    if (link.href && !next) return;
    const back = next?.() ?? window.location.pathname + window.location.search;
    link.href = `${window.jhdata?.base_url ?? "/hub/"}login?next=${encodeURIComponent(back)}`;
  };

  // The service, asked by the ticket of the page's element `root`.
  const service = (root, next) => {
    const { prefix } = root.dataset;
    let { ticket } = root.dataset;
    let renewAt = Date.now() + TICKET_MILLISECONDS;
    const fetched = (path, body, method) =>
      fetch(`${prefix}api/v1/${path}`, {
        method: method ?? (body === undefined ? "GET" : "POST"),
        headers: { Authorization: `ticket ${ticket}`, "Content-Type": "application/json" },
        body: body === undefined ? undefined : JSON.stringify(body),
        cache: "no-store",
        keepalive: body !== undefined, // a click on a link may leave the page
        signal: AbortSignal.timeout(8000),
      });
    // The hub gives a new ticket while its cookie is valid: for a form, the form's.
    const { formUser, formServer } = root.dataset;
    const form = formUser === undefined ? "" : `/${[formUser, formServer].map(encodeURIComponent).join("/")}`;
    const renew = async () => {
      const address = `${window.jhdata?.base_url ?? "/hub/"}gpuspawner/ticket${form}`;
      const answer = await fetch(address, { cache: "no-store", signal: AbortSignal.timeout(8000) });
      signedOut = answer.status === 403;
      if (!answer.ok) return false;
      ({ ticket } = await answer.json());
      renewAt = Date.now() + TICKET_MILLISECONDS;
      return true;
    };
    const told = () => {
      tellSignedOut(root, next);
      return Object.assign(new Error("You are signed out."), { signedOut: true });
    };
    // Answers the document; throws an Error with `status` and, for a refusal, `refusal`. No status: no answer. With
    // `signedOut` the page tells it already.
    const call = async (path, body, again = true, method = undefined) => {
      if (again && body === undefined && (signedOut || Date.now() > renewAt)) await renew().catch(() => {}); // or the next look does
      if (signedOut) throw told();
      const response = await fetched(path, body, method);
      const text = await response.text();
      let answer = null;
      try {
        answer = JSON.parse(text);
      } catch {
        // The proxy's own page: the service is away.
      }
      if (response.ok && answer) {
        document.getElementById(SIGNED_OUT)?.remove();
        return answer;
      }
      if (response.status === 403 && again && !answer?.error?.field && (await renew())) {
        return call(path, body, false, method);
      }
      if (signedOut) throw told();
      const error = new Error(answer?.error?.message ?? "The GPU service does not answer.");
      error.status = answer?.error ? response.status : undefined;
      error.refusal = answer?.error?.field ? answer.error : null;
      throw error;
    };
    return { call };
  };

  // Run now and then every `seconds`, one at a time, and not while the page is hidden.
  const poll = (seconds, step) => {
    let timer;
    let running = false;
    const run = async () => {
      clearTimeout(timer);
      if (running) return;
      running = true;
      try {
        if (!document.hidden) await step();
      } finally {
        running = false;
        if (!document.hidden) timer = setTimeout(run, seconds * 1000);
      }
    };
    document.addEventListener("visibilitychange", () => !document.hidden && run());
    run();
    return run;
  };

  // What tells that a workspace came: the service's own file, null where it does not come. Nothing waits for it.
  const ready = (prefix) =>
    new Promise((resolve) => {
      if (window.gpuspawnerReady) {
        resolve(window.gpuspawnerReady);
        return;
      }
      const script = element("script", { src: `${prefix}static/ready.js` });
      script.addEventListener("load", () => resolve(window.gpuspawnerReady ?? null));
      script.addEventListener("error", () => resolve(null));
      document.head.append(script);
    });

  return { duration, element, poll, ready, service, setText };
})();
