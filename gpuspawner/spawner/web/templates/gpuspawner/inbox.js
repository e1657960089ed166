// Messages of administrators, and how much of the inbox is not read, on every page of the hub.
(() => {
  "use strict";
  const SECONDS = 30;
  const { element, poll, service, setText } = window.gpuspawner;
  const root = document.getElementById("gs-banner");
  const list = document.getElementById("gs-messages");
  const api = service(root);
  const shown = new Map(); // by id: built once, so that the focus stays

  const build = (one) => {
    const button = element("button", { type: "button", className: "gs-button gs-small gs-push", textContent: "Got it" });
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        show(await api.call("inbox/read", { ids: [one.id] }));
      } catch (error) {
        button.disabled = false;
        button.after(element("span", { className: "gs-hint", textContent: error.message }));
      }
    });
    const said = element("p", { className: "gs-said" }, element("b", { textContent: one.text }));
    const who = element("p", { className: "gs-quiet", textContent: `${one.by}, until ${one.until_words}` });
    return element("div", { className: "gs-note" }, element("div", {}, said, who), button);
  };

  const show = ({ unread, messages }) => {
    const ids = messages.map((one) => one.id);
    for (const [id, note] of shown) {
      if (ids.includes(id)) continue;
      note.remove();
      shown.delete(id);
    }
    for (const one of messages) {
      if (shown.has(one.id)) continue;
      shown.set(one.id, build(one));
      list.append(shown.get(one.id));
    }
    for (const count of document.querySelectorAll("#unread, #gs-inbox .gs-count")) {
      count.hidden = !unread;
      if (count.firstChild?.data === String(unread)) continue;
      const words = count.querySelector(".gs-hidden");
      count.replaceChildren(String(unread), ...(words ? [words] : []));
    }
    document.getElementById("gs-inbox").setAttribute("aria-label", unread ? `Inbox, ${unread} unread` : "Inbox");
    const title = document.title.replace(/^\(\d+\) /, "");
    setText(document.querySelector("title"), unread ? `(${unread}) ${title}` : title);
  };

  const look = async () => {
    try {
      show(await api.call("inbox?unread=1"));
    } catch {
      // What stands there was true; the next look tells.
    }
  };
  poll(SECONDS, look);
})();
