// Has what the form has chosen ready at a time of some weekdays: the service asks for it then, and this starts nothing.
(() => {
  "use strict";
  const { form, service, setText } = window.gpuspawner;
  const root = document.getElementById("gs-ready");
  if (!root || !form) return;
  const api = service(root, form.here);
  const part = (name) => document.getElementById(`gs-ready-${name}`);
  const have = async () => {
    const on = [...part("days").querySelectorAll(":checked")].map(({ value }) => value).join();
    try {
      const one = await api.call("ready", { ...form.options(), server: form.server(), at: part("at").value, on });
      setText(part("told"), `Saved: ${one.words}. ${one.sentence}`);
    } catch (error) {
      setText(part("told"), error.message);
    }
  };
  part("do").addEventListener("click", have);
  part("at").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault(); // it must not start a workspace
    have();
  });
  for (const type of ["input", "change"]) root.addEventListener(type, (event) => event.stopPropagation()); // no choice of the form
  const open = () => {
    if (window.location.hash === "#gs-ready") document.getElementById("gs-more").open = true;
  };
  window.addEventListener("hashchange", open);
  open();
})();
