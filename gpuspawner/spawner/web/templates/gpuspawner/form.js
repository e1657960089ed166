// The options form: fits the fields to the template chosen, and keeps numbers and the sentence fresh.
(() => {
  "use strict";
  const { element, poll, service, setText } = window.gpuspawner;
  const root = document.getElementById("gs-form");
  const form = root?.closest("form");
  if (!form) return;
  const { templates, consents } = JSON.parse(document.getElementById("gs-data").textContent);
  const { away } = root.dataset;
  // The address says it even where the hub shows a named server's form again as the default one's (JupyterHub 6.1).
  const server = decodeURIComponent(new URL(form.action).pathname.match(/\/spawn\/[^/]+\/([^/]+)$/)?.[1] ?? "");
  const here = () => { const { pathname, search } = new URL(link()); return pathname + search; };
  const api = service(root, here);
  const mayStart = (may) => { // the hub's own button, which comes after this script
    for (const button of form.querySelectorAll("[type=submit]")) button.disabled = !may;
  };
  const ANY = "any";
  const FIELDS = ["count", "gpu_memory", "cpu", "memory", "lifetime"].filter((name) => document.getElementById(`gs-${name}`));
  const input = (name) => document.getElementById(`gs-${name}`);
  const chosen = (name) => root.querySelector(`input[name=${name}]:checked:not(:disabled)`)?.value ?? "";
  const template = () => templates[chosen("template")];

  const preset = {}; // what we filled in ourselves: replaced with the template, while the user has not changed it
  const fill = (name, value) => {
    const field = input(name);
    const left = field.value === "" && field !== document.activeElement; // while somebody empties it, it stays empty
    if (left || field.value === preset[name]) field.value = value;
    preset[name] = value;
    field.placeholder = value;
  };

  // Shows of some rows those that are offered, the first of them as the first.
  const only = (rows, offered) => {
    let first = true;
    for (const row of rows) {
      const shown = offered(row);
      row.hidden = !shown;
      row.querySelector("input").disabled = !shown;
      row.classList.toggle("gs-first", shown && first);
      first &&= !shown;
    }
    return !first;
  };

  // What else is taken, of this workspace and this GPU: as it was the last time, until somebody says otherwise.
  const said = new Set();
  const fitInstead = (now) => {
    const rows = root.querySelectorAll("[data-asked]");
    for (const { dataset, firstElementChild: box } of rows) {
      if (!said.has(box)) box.checked = consents[chosen("template")]?.includes(dataset.given) ?? false;
    }
    const asked = chosen("gpu");
    const count = Number(input("count").value);
    const any = only(rows, ({ dataset }) => {
      const [least, most] = (dataset.asked === asked && now.substitutes[asked]?.[dataset.given]) || [1, 0];
      return least <= count && count <= most;
    });
    const all = root.querySelector("#gs-instead");
    if (all) all.hidden = !any;
  };

  const showLifetimes = (lifetimes) => { // whoever presses one keeps the focus on it
    const all = input("lifetimes");
    if ([...all.children].map(({ textContent }) => textContent).join() !== lifetimes.join()) {
      all.replaceChildren(...lifetimes.map((text) => element("button", { type: "button", className: "gs-chip", textContent: text })));
    }
    const { value } = input("lifetime");
    for (const button of all.children) button.setAttribute("aria-pressed", String(button.textContent === value));
  };

  const fit = () => {
    const now = template();
    only(root.querySelectorAll("[data-kind]"), ({ dataset }) => dataset.kind in now.gpus);
    for (const menu of root.querySelectorAll("[data-profile]")) {
      menu.hidden = menu.disabled = menu.dataset.profile !== now.profile;
    }
    const usual = root.querySelector("#gs-usual");
    usual.hidden = true;
    usual.querySelector("input").disabled = true;
    if (!chosen("gpu")) root.querySelector(`input[name=gpu][value="${CSS.escape(now.gpu)}"]`).checked = true;
    const ends = now.gpus[chosen("gpu")];
    const count = input("count");
    count.disabled = !ends;
    fill("count", ends ? String(ends.default) : "");
    if (!ends) count.value = "";
    setText(input("count-hint"), ends ? (ends.least === ends.most ? `${ends.most}` : `${ends.least} to ${ends.most}`) : "none");
    const memory = root.querySelector("#gs-any");
    if (memory) memory.hidden = input("gpu_memory").disabled = chosen("gpu") !== ANY;
    fitInstead(now);
    for (const name of FIELDS.slice(1)) {
      fill(name, now[name].default);
      setText(input(`${name}-hint`), now[name].hint);
      input(`${name}-list`).replaceChildren(...now[name].suggestions.map((text) => new Option("", text)));
    }
    showLifetimes(now.lifetimes);
    const tools = input("tools");
    if (tools) tools.hidden = !only(tools.querySelectorAll("[data-tool-of]"), ({ dataset }) => dataset.toolOf === chosen("template"));
    const image = input("own_image");
    if (image) {
      image.disabled = input("own-image").hidden = !now.own_images;
      image.placeholder = now.own_images;
      setText(input("own-images"), now.own_images);
    }
  };

  const sizes = () => {
    const all = { template: chosen("template"), gpu: chosen("gpu") };
    for (const name of FIELDS) {
      const value = input(name).value.trim();
      if (value && !input(name).disabled) all[name] = value;
    }
    return all;
  };

  const own = () => [...root.querySelectorAll("[data-own]")]; // what is run: in no link
  const choices = () => [...root.querySelectorAll("[data-profile]:not(:disabled) [data-key]")];
  const ticked = (name) => [...root.querySelectorAll(`[name=${name}]:checked:not(:disabled)`)].map(({ value }) => value);
  const options = () => {
    const all = sizes();
    if (chosen("team")) all.team = chosen("team");
    if (chosen("gpu") in template().substitutes) all.substitutes = ticked("substitutes");
    if (ticked("tools").length) all.tools = ticked("tools");
    for (const field of choices()) {
      const value = field.value.trim();
      if (value) all[field.dataset.key] = value;
    }
    for (const field of own()) {
      if (field.value.trim() && !field.disabled) all[field.dataset.own] = field.value.trim();
    }
    return all;
  };

  const refusal = document.querySelector(".spawn-error-msg"); // the hub's own, above the form, of what was sent
  const showBeside = (name, texts) => {
    for (const node of root.querySelectorAll(`[data-${name}]`)) {
      const text = texts[node.dataset[name]] ?? "";
      setText(node, text);
      node.hidden = !text;
    }
  };
  // What was understood, where it does not read as it was typed.
  const plain = (text) => text.toLowerCase().replaceAll(" ", "").replace("min", "m");
  const showUnderstood = (meant) => {
    const news = Object.entries(meant).filter(([name, text]) => input(name) && plain(input(name).value) !== plain(text));
    showBeside("understood", Object.fromEntries(news.map(([name, text]) => [name, `= ${text}`])));
  };
  const tell = (sentence, { fields = [], understood = {} }, warns) => {
    const wrong = Object.fromEntries(fields.map(({ field, words }) => [field, words]));
    if (!refusal?.textContent.includes(sentence)) refusal?.remove(); // it is no longer what is asked for
    setText(root.querySelector("#gs-sentence"), refusal?.isConnected ? "Not possible as it is: see above." : sentence);
    root.querySelector("#gs-does").classList.toggle("gs-warn", warns);
    showBeside("wrong", wrong);
    showUnderstood(understood);
    for (const name of FIELDS) input(name).setAttribute("aria-invalid", String(name in wrong));
    for (const one of choices()) one.setAttribute("aria-invalid", String(one.dataset.key in wrong));
    for (const one of own()) one.setAttribute("aria-invalid", String(one.dataset.own in wrong));
    if (own().some(({ dataset }) => dataset.own in wrong)) input("more").open = true;
    for (const one of root.querySelectorAll("[name=team]")) one.setAttribute("aria-invalid", String("team" in wrong));
  };

  const showLines = (list, lines) => {
    list.hidden = !lines.length;
    lines.forEach((words, at) => setText(list.children[at] ?? list.appendChild(element("li")), words));
    while (list.children.length > lines.length) list.lastElementChild.remove();
  };
  const showQuota = (lines) => showLines(input("quota"), lines.map(({ words }) => words));

  const showInstead = (substitutes) => {
    for (const { kind, words } of substitutes) {
      const row = root.querySelector(`[data-given="${CSS.escape(kind)}"]:not([hidden])`);
      if (row) setText(row.querySelector("[data-words]"), words ? `: ${words}` : "");
    }
  };

  let asked = 0;
  const check = async () => {
    const number = ++asked;
    try {
      const answer = await api.call("check", { ...options(), server });
      mayStart(true);
      if (number !== asked) return;
      tell(answer.sentence, answer, !answer.starts_now);
      showInstead(answer.substitutes);
      showQuota(answer.quota);
      showLines(input("cost"), answer.cost?.words ?? []);
    } catch (error) {
      showLines(input("cost"), []);
      mayStart(!error.signedOut); // the hub would answer by a page about a cookie
      if (number !== asked) return; // what was asked meanwhile tells instead
      const { refusal: said } = error;
      const beside = said && !said.fields ? { fields: [{ field: said.field, words: said.message }] } : (said ?? {});
      tell(said?.sentence ?? (error.status || error.signedOut ? error.message : away), beside, true);
    }
  };

  const showOffers = (offers) => {
    for (const row of root.querySelectorAll(`[data-kind]:not([data-kind=${ANY}])`)) {
      const offer = offers.find((one) => one.kind === row.dataset.kind);
      const known = offer && offer.free !== null && offer.total !== null;
      const waiting = offer?.waiting ? `, ${offer.waiting} waiting` : "";
      const free = known && (offer.total || !offer.note ? `${offer.free} of ${offer.total} free` : offer.note);
      const note = known && offer.total && offer.note ? `; ${offer.note}` : "";
      setText(row.querySelector("[data-free]"), known ? `${free}${waiting}${note}` : "free: unknown");
      if (offer) row.querySelector("[data-simulated]").hidden = !offer.simulated;
    }
  };

  const look = async () => {
    try {
      const { offers, quota } = await api.call("offers");
      showOffers(offers);
      showQuota(quota);
    } catch {
      showOffers([]);
    }
    await check();
  };

  const link = () => {
    const url = new URL(`${window.jhdata?.base_url ?? "/hub/"}spawn`, window.location.href); // whoever opens it
    for (const [name, value] of Object.entries(sizes())) url.searchParams.set(`opt-${name}`, value);
    return url.href;
  };

  const copy = async () => {
    const field = input("url");
    field.hidden = false;
    field.value = link();
    field.select();
    try {
      await navigator.clipboard.writeText(field.value);
      setText(input("copied"), "Copied. The link fills in this form; it starts nothing.");
    } catch {
      setText(input("copied"), "Copy it from here. The link fills in this form; it starts nothing.");
    }
  };

  let waiting;
  const changed = () => {
    fit();
    input("url").hidden = true;
    setText(input("copied"), "");
    clearTimeout(waiting);
    waiting = setTimeout(check, 300);
  };

  // Fill in what a preset says, and where it says nothing what is usual; return what of it is not offered any more.
  const take = (wanted) => {
    const pick = (name, value) => {
      const found = root.querySelector(`input[name=${name}][value="${CSS.escape(value)}"]`);
      if (found && !found.disabled) found.checked = true;
      return Boolean(found && !found.disabled);
    };
    const gone = [];
    if (wanted.template && !pick("template", wanted.template)) gone.push(`the workspace ${wanted.template}`);
    fit();
    if (wanted.gpu && !pick("gpu", wanted.gpu)) gone.push(`the GPU ${wanted.gpu}`);
    if (!wanted.gpu) pick("gpu", template().gpu);
    if (wanted.team && !pick("team", wanted.team)) gone.push(`the team ${wanted.team}`);
    fit();
    for (const name of FIELDS) {
      if (!input(name).disabled) input(name).value = wanted[name] ?? preset[name] ?? "";
    }
    for (const field of choices()) field.value = wanted[field.dataset.key] ?? "";
    for (const field of own()) field.value = wanted[field.dataset.own] ?? "";
    const others = [wanted.substitutes ?? []].flat();
    for (const box of root.querySelectorAll("[name=substitutes]:not(:disabled)")) {
      box.checked = others.includes(box.value);
      said.add(box);
    }
    const tools = [wanted.tools ?? []].flat();
    for (const box of root.querySelectorAll("[name=tools]:not(:disabled)")) box.checked = tools.includes(box.value);
    const offered = ticked("tools");
    gone.push(...tools.filter((tool) => !offered.includes(tool)).map((tool) => `the tool ${tool}`));
    changed();
    return gone.length ? `Not offered any more: ${gone.join(", ")}. The rest is filled in.` : "";
  };
  window.gpuspawner.form = { here, options, server, take };

  for (const node of root.querySelectorAll(".gs-script")) node.hidden = false;
  for (const node of root.querySelectorAll(".gs-plain")) node.hidden = true;
  root.addEventListener("input", ({ target }) => {
    if (target.name === "substitutes") said.add(target);
    changed();
  });
  input("copy").addEventListener("click", copy);
  input("lifetimes").addEventListener("click", ({ target }) => {
    if (target.type !== "button") return;
    input("lifetime").value = target.textContent;
    changed();
  });
  fit();
  poll(5, look);
})();
