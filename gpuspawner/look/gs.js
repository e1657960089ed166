// The script of all pages: theme, menus, dialogs, copying, and fields that belong together. Pages work without it.
(() => {
  'use strict';
  const KEY = 'jupyterhub-bs-theme'; // JupyterHub's own pages keep the choice under this name
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const stored = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // the browser stores nothing: the theme is the system's
    }
  };
  const showTheme = () => { // runs at once, before anything is drawn
    const chosen = stored();
    const theme = chosen === 'light' || chosen === 'dark' ? chosen : dark.matches ? 'dark' : 'light';
    document.documentElement.dataset.bsTheme = theme;
    for (const button of document.querySelectorAll('[data-theme]')) button.setAttribute('aria-pressed', String(theme === 'dark'));
  };
  const switchTheme = () => {
    try {
      localStorage.setItem(KEY, document.documentElement.dataset.bsTheme === 'dark' ? 'light' : 'dark');
    } catch {
      return;
    }
    showTheme();
  };
  showTheme();
  dark.addEventListener('change', showTheme);
  window.addEventListener('storage', showTheme); // the theme was switched in another tab

  // Menus are popovers. This places them in browsers without anchor positioning.
  const place = (menu) => {
    if (CSS.supports('position-area: bottom')) return;
    const at = document.querySelector(`[popovertarget="${menu.id}"]`).getBoundingClientRect();
    menu.style.top = `${at.bottom}px`;
    menu.style.left = `${Math.max(8, at.right - menu.offsetWidth)}px`;
  };

  const copy = async (button) => {
    const label = button.getAttribute('aria-label');
    const icon = button.querySelector('use');
    const before = icon?.getAttribute('href');
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
    } catch { // browsers have no clipboard on pages that are opened over http
      const field = Object.assign(document.createElement('textarea'), { value: button.dataset.copy });
      button.after(field);
      field.select();
      document.execCommand('copy');
      field.remove();
    }
    button.setAttribute('aria-label', 'Copied');
    icon?.setAttribute('href', '#i-check');
    setTimeout(() => {
      if (label) button.setAttribute('aria-label', label);
      else button.removeAttribute('aria-label');
      icon?.setAttribute('href', before);
    }, 2000);
  };

  const step = (button) => {
    const input = button.parentElement.querySelector('input');
    if (input.value === '') input.value = input.placeholder;
    else if (button === button.parentElement.firstElementChild) input.stepDown();
    else input.stepUp();
    input.dispatchEvent(new Event('input', { bubbles: true }));
    input.dispatchEvent(new Event('change', { bubbles: true }));
  };

  document.addEventListener('click', ({ target }) => {
    const button = target.closest?.('button');
    if (!button) return;
    if (button.dataset.theme !== undefined) switchTheme();
    else if (button.dataset.dialog) {
      button.closest('[popover]')?.hidePopover();
      document.getElementById(button.dataset.dialog)?.showModal();
    } else if (button.dataset.close !== undefined) button.closest('dialog')?.close();
    else if (button.dataset.copy) copy(button);
    else if (button.closest('.gs-stepper')) step(button);
  });
  document.addEventListener('toggle', ({ target, newState }) => {
    if (newState === 'open' && target.matches?.('.gs-menu[popover]')) place(target);
  }, true);

  // A slider and its field show the same value. The part of the slider below it is coloured.
  const paint = (slider) => slider.style.setProperty('--part', `${(100 * (slider.value - slider.min)) / (slider.max - slider.min || 1)}%`);
  const pair = (target) => {
    const slider = target.dataset?.pair ? target : target.id && document.querySelector(`[data-pair="${CSS.escape(target.id)}"]`);
    if (!slider) return;
    const field = document.getElementById(slider.dataset.pair);
    if (slider === target) field.value = target.value;
    else if (target.value !== '') slider.value = target.value;
    paint(slider);
  };

  // Rows are chosen by checkboxes named `ids`. [data-all] chooses all of them, [data-count] says how many are chosen.
  const showChosen = (form) => {
    const boxes = [...form.elements].filter((one) => one.name === 'ids');
    const chosen = boxes.filter((box) => box.checked).length;
    const all = form.querySelector('[data-all]');
    all.checked = chosen > 0 && chosen === boxes.length;
    all.indeterminate = chosen > 0 && chosen < boxes.length;
    form.querySelector('[data-count]').textContent = `${chosen} selected`;
  };
  document.addEventListener('input', ({ target }) => {
    pair(target);
    const { form } = target;
    if (!form?.querySelector?.('[data-count]')) return;
    if (target.dataset.all !== undefined) for (const box of form.elements) if (box.name === 'ids') box.checked = target.checked;
    showChosen(form);
  });

  document.addEventListener('DOMContentLoaded', () => {
    showTheme();
    const here = document.querySelector('.gs-tabs [aria-current]'); // on a phone it may lie beyond the edge
    if (here) here.parentElement.scrollLeft = here.offsetLeft - (here.parentElement.clientWidth - here.offsetWidth) / 2;
    document.querySelectorAll('.gs-range [data-pair]').forEach(paint);
    document.querySelector('dialog[data-open]')?.showModal(); // a page that is a dialog
    for (const all of document.querySelectorAll('[data-all]')) if (all.form && all.form.querySelector('[data-count]')) showChosen(all.form);
  });
})();
