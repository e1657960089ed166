// Presets of the user: names that fill in the form. Values are checked when a preset is used.
(() => {
  "use strict";
  const { element, form, service, setText } = window.gpuspawner;
  const root = document.getElementById("gs-presets");
  if (!root || !form) return;
  const api = service(root, form.here);
  const part = (name) => document.getElementById(`gs-preset-${name}`);
  const button = (act) => root.querySelector(`[data-act=${act}]`);
  const tell = (text) => { // in the dialog while it is open: nothing else is read out then
    const open = part("dialog").open;
    setText(part("told"), open ? "" : text);
    setText(part("problem"), open ? text : "");
  };
  let presets = [];
  let used = ""; // the one that was filled in last

  const show = () => {
    const list = part("list");
    const held = list.contains(document.activeElement) && document.activeElement.textContent;
    list.replaceChildren(
      ...presets.map(({ name }) => {
        const chip = element("button", { type: "button", className: "gs-chip" }, element("span", { textContent: name }));
        chip.setAttribute("aria-pressed", String(name === used));
        return chip;
      }),
    );
    [...list.children].find(({ textContent }) => textContent === held)?.focus();
    for (const act of ["rename", "delete"]) button(act).hidden = !used;
    part("section").hidden = !presets.length;
  };
  const look = async () => {
    ({ presets } = await api.call("presets"));
    if (!presets.some(({ name }) => name === used)) used = "";
    show();
  };
  const at = (name) => `presets/${encodeURIComponent(name)}`;

  const acts = {
    save: async (name) => {
      await api.call("presets", { name, options: form.options() });
      used = name;
      return `Saved as ${name}.`;
    },
    rename: async (name) => {
      const before = used;
      await api.call(at(before), { name });
      used = name;
      return `${before} is called ${name} now.`;
    },
    delete: async () => {
      const gone = used;
      await api.call(at(gone), undefined, true, "DELETE");
      part("name").value = "";
      part("name").focus(); // the button goes
      return `${gone} is deleted.`;
    },
  };
  const act = async (what) => {
    const name = part("name").value.trim();
    if (!name && what !== "delete") {
      tell("Write a name first.");
      part("name").focus();
      return;
    }
    try {
      const told = await acts[what](name);
      await look();
      tell(told);
    } catch (error) {
      tell(error.message);
    }
  };

  root.addEventListener("click", ({ target }) => {
    const chip = target.closest("#gs-preset-list > button");
    const preset = presets.find(({ name }) => name === chip?.textContent);
    if (preset) {
      used = preset.name;
      part("name").value = used;
      tell(form.take(preset.options) || `${used} is filled in. Nothing is started before you press Start.`);
      show();
    } else if (target.dataset.act) act(target.dataset.act);
  });
  part("name").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault(); // it must not start a workspace
    act("save");
  });
  for (const type of ["input", "change"]) root.addEventListener(type, (event) => event.stopPropagation()); // no choice of the form
  look().catch((error) => tell(error.message));
})();
