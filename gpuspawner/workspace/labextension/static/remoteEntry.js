/* What JupyterLab loads: a module-federation container written by hand, so that nothing has to be built.
 * It shares no module with JupyterLab: the plugin is plain DOM and fits every version with prebuilt extensions. */
window._JUPYTERLAB = window._JUPYTERLAB || {};
window._JUPYTERLAB.gpuspawner = {
  init() {},
  async get() {
    const module = await import('./plugin.js');
    return () => module.default;
  }
};
