// The options form: fits the fields to the template chosen, and keeps numbers and the sentence fresh.
(() => {
  "use strict";
  const { element, poll, service, setText } = window.gpuspawner;
  const root = document.getElementById("gs-form");
  const form = root?.closest("form");
  if (!form) return;
  const { templates } = JSON.parse(document.getElementById("gs-data").textContent);
  const { away } = root.dataset;
  const input = (name) => document.getElementById(`gs-${name}`);
  // The address says it even where the hub shows a named server's form again as the default one's (JupyterHub 6.1).
  const named = decodeURIComponent(new URL(form.action).pathname.match(/\/spawn\/[^/]+\/([^/]+)$/)?.[1] ?? "");
  if (input("name")) input("name").value = named;
  const server = () => input("name")?.value.trim() ?? named;
  const sendTo = () => { // the name of the workspace is part of the address that the form is sent to
    if (!input("name")) return;
    const url = new URL(form.action);
    const path = ["spawn", root.dataset.user, server()].filter(Boolean).map(encodeURIComponent).join("/");
    url.pathname = (window.jhdata?.base_url ?? "/hub/") + path;
    form.action = url.href;
  };
  const here = () => { const { pathname, search } = new URL(link()); return pathname + search; };
  const api = service(root, here);
  const mayStart = (may) => {
    for (const button of form.querySelectorAll("[type=submit]")) button.disabled = !may; // the hub's own, too
  };
  const ANY = "any";
  const FIELDS = ["count", "gpu_memory", "cpu", "memory", "lifetime"].filter((name) => document.getElementById(`gs-${name}`));
  const chosen = (name) => root.querySelector(`input[name=${name}]:checked:not(:disabled), select[name=${name}]`)?.value ?? "";
  const template = () => templates[chosen("template")];

  const preset = {}; // what we filled in ourselves: replaced with the template, while the user has not changed it
  const fill = (name, value) => {
    const field = input(name);
    const left = field.value === "" && field !== document.activeElement; // a field with the focus may stay empty
    if (left || field.value === preset[name]) field.value = value;
    preset[name] = value;
    field.placeholder = value;
  };

  // Shows the rows that are offered. Returns whether there are any.
  const only = (rows, offered) => {
    let any = false;
    for (const row of rows) {
      const shown = offered(row);
      row.hidden = !shown;
      row.querySelector("input").disabled = !shown;
      any ||= shown;
    }
    return any;
  };

  // GPUs that are accepted instead: of this template and of the GPU that is chosen.
  const fitInstead = (now) => {
    const asked = chosen("gpu");
    const count = Number(input("count").value);
    const any = only(root.querySelectorAll("[data-asked]"), ({ dataset }) => {
      const [least, most] = (dataset.asked === asked && now.substitutes[asked]?.[dataset.given]) || [1, 0];
      return least <= count && count <= most;
    });
    if (input("instead")) input("instead").hidden = !any;
  };

  // One chip for each usual run time, and one for any other, which shows the field.
  let other = false;
  const showLifetimes = (lifetimes) => {
    const all = input("lifetimes");
    const chips = () => [...all.querySelectorAll(".gs-chip")];
    const texts = [...lifetimes, "Other"];
    const shown = (text) => text.replace(/(\d)([a-z])/g, "$1 $2").replace(/ m$/, " min");
    if (chips().map(({ textContent }) => textContent).join() !== texts.map(shown).join()) {
      for (const chip of chips()) chip.remove();
      all.prepend(...texts.map((text) => {
        const radio = element("input", { type: "radio", name: "gs-lifetime-chip", value: text === "Other" ? "" : text });
        radio.setAttribute("form", "gs-no-form"); // the field is what is sent
        if (text === "Other") radio.dataset.other = "";
        return element("label", { className: "gs-chip" }, radio, element("span", { textContent: shown(text) }));
      }));
    }
    const { value } = input("lifetime");
    const usual = lifetimes.includes(value) && !other ? value : "";
    for (const radio of all.querySelectorAll("[type=radio]")) radio.checked = radio.value === usual;
  };

  // A slider steps through the usual sizes. It shows the size nearest to the value of the field.
  const GIB = 2 ** 30;
  const UNITS = { K: 2 ** 10, M: 2 ** 20, G: GIB, T: 2 ** 40 };
  const amount = (text) => parseFloat(text) * (UNITS[text.match(/[KMGT]/i)?.[0].toUpperCase()] ?? 1);
  const showSlider = (name, { suggestions }) => {
    const slider = root.querySelector(`[data-slider=${name}]`);
    if (!slider) return;
    slider.hidden = suggestions.length < 2;
    slider.max = Math.max(1, suggestions.length - 1);
    const wanted = amount(input(name).value);
    const distance = (text) => Math.abs(Math.log(amount(text) / wanted));
    const nearest = wanted > 0 ? suggestions.reduce((best, text) => (distance(text) < distance(best) ? text : best), suggestions[0]) : suggestions[0];
    slider.value = Math.max(0, suggestions.indexOf(nearest));
    slider.setAttribute("aria-valuetext", suggestions[slider.value] ?? "");
    slider.style.setProperty("--part", `${(100 * slider.value) / slider.max}%`);
  };

  const fit = () => {
    const now = template();
    only(root.querySelectorAll("[data-kind]"), ({ dataset }) => dataset.kind in now.gpus);
    for (const menu of root.querySelectorAll("[data-profile]")) {
      menu.hidden = menu.disabled = menu.dataset.profile !== now.profile;
    }
    if (!chosen("gpu")) root.querySelector(`input[name=gpu][value="${CSS.escape(now.gpu)}"]`).checked = true;
    const ends = now.gpus[chosen("gpu")];
    const count = input("count");
    count.disabled = !ends;
    fill("count", ends ? String(ends.default) : "");
    if (!ends) count.value = "";
    if (ends) Object.assign(count, { min: ends.least, max: ends.most });
    for (const button of count.parentElement.querySelectorAll("button")) button.disabled = !ends || ends.least === ends.most;
    setText(input("count-hint"), ends ? (ends.least === ends.most ? `${ends.most}` : `${ends.least} to ${ends.most}`) : "No GPU");
    const memory = root.querySelector("#gs-any");
    if (memory) memory.hidden = input("gpu_memory").disabled = chosen("gpu") !== ANY;
    fitInstead(now);
    for (const name of FIELDS.slice(1)) {
      fill(name, now[name].default);
      setText(input(`${name}-hint`), now[name].hint);
      showSlider(name, now[name]);
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

  const refusal = document.querySelector(".spawn-error-msg"); // of what was sent
  const showBeside = (name, texts) => {
    for (const node of root.querySelectorAll(`[data-${name}]`)) {
      const text = texts[node.dataset[name]] ?? "";
      setText(node, text);
      (node.closest(".gs-wrong") ?? node).hidden = !text;
    }
  };
  // What was understood, where it does not read as it was typed.
  const plain = (text) => text.toLowerCase().replaceAll(" ", "").replace("min", "m");
  const showUnderstood = (meant) => {
    const news = Object.entries(meant).filter(([name, text]) => input(name) && plain(input(name).value) !== plain(text));
    showBeside("understood", Object.fromEntries(news.map(([name, text]) => [name, `= ${text}`])));
  };
  const icon = (name, kind = "") => {
    const made = element("span", {});
    made.innerHTML = `<svg class="gs-icon ${kind}" aria-hidden="true"><use href="#i-${name}"/></svg>`;
    return made.firstChild;
  };
  const fact = (words, name) => element("li", {}, icon(name), element("p", { textContent: words }));
  const iconOf = (words) => (/^(It )?[Ee]nds/.test(words) ? "clock" : /idle/.test(words) ? "pause" : "info");
  const STATES = { starts: ["bolt", "gs-good"], waits: ["hourglass", ""], away: ["alert", "gs-warn"] };
  // As _split_facts in form.py: some sentences continue the thought of the one before.
  const joinFacts = (facts, one) => (facts.length > 1 && /^(It stops|Your share|You get it) /.test(one) ? [...facts.slice(0, -1), `${facts.at(-1)} ${one}`] : [...facts, one]);
  let summary = "";
  const summarize = (sentence, state) => {
    const box = root.querySelector("#gs-sentence");
    if (summary === `${state} ${sentence}`) return; // screen readers read only changes
    summary = `${state} ${sentence}`;
    const [first, ...rest] = sentence.split(/(?<=[.!?]) (?!Allowed: )(?=[A-Z“'"])/).reduce(joinFacts, []);
    const refused = state === "refused";
    root.querySelector("#gs-lead").hidden = !refused;
    const lead = element("p", { className: refused ? "" : "gs-lead" }, ...(refused ? [first] : [icon(...STATES[state]), element("b", { textContent: first })]));
    const facts = element("ul", { className: "gs-facts" }, ...rest.flatMap((one) => [" ", fact(one, iconOf(one))]));
    box.replaceChildren(lead, ...(rest.length ? [facts] : []));
    setText(input("go-words"), refused ? "Can’t start yet" : first);
  };
  const tell = (sentence, { fields = [], understood = {} }, state) => {
    const wrong = Object.fromEntries(fields.map(({ field, words }) => [field, words]));
    // The note above says what was wrong when the form was sent: it goes once that is no longer what is wrong.
    const problems = input("problems");
    if (problems && problems.querySelectorAll("a").length !== fields.length) problems.remove();
    if (!input("problems") && !refusal?.textContent.includes(sentence)) refusal?.remove();
    if (state === "refused") setText(input("go-more"), fields.length > 1 ? `Change ${fields.length} fields first` : fields.length ? "Change one field first" : "");
    summarize(refusal?.isConnected ? "Change what is named above." : sentence, state);
    showBeside("wrong", wrong);
    showUnderstood(understood);
    for (const name of FIELDS) input(name).setAttribute("aria-invalid", String(name in wrong));
    for (const one of choices()) one.setAttribute("aria-invalid", String(one.dataset.key in wrong));
    for (const one of own()) one.setAttribute("aria-invalid", String(one.dataset.own in wrong));
    if (own().some(({ dataset }) => dataset.own in wrong)) input("more").open = true;
    for (const one of root.querySelectorAll("[name=team]")) one.setAttribute("aria-invalid", String("team" in wrong));
    input("name")?.setAttribute("aria-invalid", String("server" in wrong));
  };

  const showLines = (list, lines) => {
    list.hidden = !lines.length;
    lines.forEach((words, at) => setText((list.children[at] ?? list.appendChild(fact("", list.dataset.icon))).querySelector("p"), words));
    while (list.children.length > lines.length) list.lastElementChild.remove();
  };
  const showCost = (words) => {
    showLines(input("cost"), words);
    setText(input("go-more"), words[0] ?? "");
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
      const answer = await api.call("check", { ...options(), server: server() });
      mayStart(true);
      if (number !== asked) return;
      tell(answer.sentence, answer, answer.starts_now ? "starts" : "waits");
      showInstead(answer.substitutes);
      showQuota(answer.quota);
      showCost(answer.cost?.words ?? []);
    } catch (error) {
      showCost([]);
      mayStart(!error.signedOut); // the hub would answer by a page about a cookie
      if (number !== asked) return; // the answer to a newer request counts
      const { refusal: said } = error;
      const problems = said && !said.fields ? { fields: [{ field: said.field, words: said.message }] } : (said ?? {});
      tell(said?.sentence ?? (error.status || error.signedOut ? error.message : away), problems, said ? "refused" : "away");
    }
  };

  const showOffers = (offers) => {
    const rows = [...root.querySelectorAll(`[data-kind]:not([data-kind=${ANY}])`)];
    const offerOf = (row) => offers.find((one) => one.kind === row.dataset.kind);
    for (const row of rows) {
      const offer = offerOf(row);
      const known = offer && offer.free !== null && offer.total !== null;
      const node = row.querySelector("[data-free]");
      setText(node, known ? (offer.free ? `${offer.free} of ${offer.total} free` : "None free") : "Not known");
      node.className = known ? (offer.free && !offer.waiting ? "gs-good" : "gs-warn") : "";
      const notes = known ? [offer.waiting ? `${offer.waiting} waiting` : "", offer.note] : [];
      setText(row.querySelector("[data-note]"), notes.filter(Boolean).join(", "));
    }
    if (!offers.length) return;
    const all = rows.every((row) => offerOf(row)?.simulated);
    root.querySelector("[data-all-simulated]").hidden = !all;
    for (const row of rows) row.querySelector("[data-simulated]").hidden = all || !offerOf(row)?.simulated;
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
    const url = new URL(`${window.jhdata?.base_url ?? "/hub/"}spawn`, window.location.href); // the link is for any user
    for (const [name, value] of Object.entries(sizes())) url.searchParams.set(`opt-${name}`, value);
    return url.href;
  };

  const quoted = (text) => (/^[\w.,:@/+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  const command = () => {
    const { template: name, ...rest } = options();
    const flags = { ...rest, name: server(), variables: rest.variables?.split("\n") }; // a script is a file there
    const FLAG = { substitutes: "instead", tools: "tool", variables: "variable", gpu_memory: "gpu-memory", own_image: "own-image" };
    const known = ["gpu", "gpu_memory", "count", "cpu", "memory", "lifetime", "team", "substitutes", "tools", "repository", "own_image", "variables", "name"];
    const words = known.flatMap((key) => [flags[key] ?? []].flat().filter(Boolean).map((value) => `--${FLAG[key] ?? key} ${quoted(value)}`));
    return ["gpuspawner start", quoted(name), ...words].join(" ");
  };
  const showCopies = () => {
    input("copy").dataset.copy = link();
    input("copy-command").dataset.copy = command();
  };

  let waiting;
  const changed = () => {
    fit();
    sendTo();
    showCopies();
    clearTimeout(waiting);
    waiting = setTimeout(check, 300);
  };

  // Fill in what a preset says, and where it says nothing what is usual; return what of it is not offered any more.
  const take = (wanted) => {
    const pick = (name, value) => {
      const choice = root.querySelector(`select[name=${name}]`);
      if (choice) {
        const there = [...choice.options].some((one) => one.value === value);
        if (there) choice.value = value;
        return there;
      }
      const found = root.querySelector(`input[name=${name}][value="${CSS.escape(value)}"]`);
      if (found && !found.disabled) found.checked = true;
      return Boolean(found && !found.disabled);
    };
    const gone = [];
    if (wanted.template && !pick("template", wanted.template)) gone.push(`the template ${wanted.template}`);
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
    }
    const tools = [wanted.tools ?? []].flat();
    for (const box of root.querySelectorAll("[name=tools]:not(:disabled)")) box.checked = tools.includes(box.value);
    const offered = ticked("tools");
    gone.push(...tools.filter((tool) => !offered.includes(tool)).map((tool) => `the tool ${tool}`));
    changed();
    return gone.length ? `Not offered any more: ${gone.join(", ")}. The rest is filled in.` : "";
  };
  window.gpuspawner.form = { here, options, server, take };

  root.querySelector("#gs-usual")?.remove();
  for (const node of root.querySelectorAll(".gs-script")) node.hidden = false;
  for (const node of root.querySelectorAll(".gs-noscript")) node.hidden = true;
  root.addEventListener("input", ({ target }) => {
    if (target.name === "gs-lifetime-chip") {
      other = target.dataset.other !== undefined;
      if (!other) input("lifetime").value = target.value;
      else input("lifetime").focus();
    } else if (target === input("lifetime")) other = true; // the field stays while it is edited
    const { slider } = target.dataset;
    if (slider) {
      input(slider).value = template()[slider].suggestions[target.value];
      target.setAttribute("aria-valuetext", input(slider).value);
    }
    changed();
  });
  form.addEventListener("submit", () => input("start").classList.add("gs-busy"));
  input("problems")?.focus();
  fit();
  sendTo();
  showCopies();
  poll(5, look);
})();
