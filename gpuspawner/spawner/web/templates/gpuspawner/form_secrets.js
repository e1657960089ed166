// Saves a secret of the form's user. It is no choice of the form, and it is in no request for a workspace.
(() => {
  "use strict";
  const { form, service, setText } = window.gpuspawner;
  const root = document.getElementById("gs-secrets");
  if (!root || !form) return;
  const api = service(root, form.here);
  const part = (name) => document.getElementById(`gs-secrets-${name}`);
  const save = async () => {
    try {
      const { name } = await api.call("secrets", { name: part("name").value.trim(), value: part("value").value });
      part("value").value = "";
      setText(part("told"), `${name} is saved.`);
    } catch (error) {
      setText(part("told"), error.message);
    }
  };
  part("do").addEventListener("click", save);
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.target.tagName !== "INPUT") return;
    event.preventDefault(); // it must not start a workspace
    save();
  });
  for (const type of ["input", "change"]) root.addEventListener(type, (event) => event.stopPropagation()); // no choice of the form
})();
