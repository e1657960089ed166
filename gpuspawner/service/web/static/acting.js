// Opens what administrators do in a dialog: the same pages as without JavaScript, their part #act shown over this one.
// The browser keeps the focus within, closes it by Escape, and gives the focus back to what opened it.
const token = document.querySelector('meta[name=xsrf]').content;
let dialog;

async function show(url, options = {}) {
  const response = await fetch(url, {headers: {'X-XSRFToken': token}, ...options});
  const page = new DOMParser().parseFromString(await response.text(), 'text/html');
  const part = page.getElementById('act');
  if (!part) { // it was done, or somebody has to sign in: go where it leads
    location.assign(response.redirected ? response.url : url);
    return;
  }
  if (!dialog) {
    dialog = document.createElement('dialog');
    dialog.className = 'gs-dialog';
    dialog.setAttribute('aria-labelledby', 'act-title');
    (document.querySelector('.gs-old') ?? document.getElementById('main')).append(dialog);
  }
  dialog.replaceChildren(part);
  if (!dialog.open) dialog.showModal();
  const first = dialog.querySelector('[role=alert], [aria-invalid=true], [role=status]') ?? dialog.querySelector('h1');
  if (!first.matches('input, select, h1')) first.setAttribute('tabindex', '-1');
  first.focus(); // what is new is read out first
}

const go = (url, options) => show(url, options).catch(() => location.assign(url)); // the page itself says what is wrong

document.addEventListener('click', (event) => {
  const link = event.target.closest('a');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (link.matches('[data-act]')) {
    event.preventDefault();
    go(link.href);
  } else if (link.matches('.gs-dialog [data-close]')) {
    event.preventDefault();
    dialog.close();
  }
});

// Rows are chosen by checkboxes that belong to a form of acts: how many are, is told as they change.
const boxes = (form) => [...form.elements].filter((one) => one.name === 'ids');
for (const form of document.querySelectorAll('form[data-act]')) {
  const all = form.querySelector('[data-all]');
  const tell = () => {
    const count = boxes(form).filter((one) => one.checked).length;
    form.querySelector('.gs-chosen').textContent = count ? `${count} chosen:` : 'Choose in the table:';
    all.checked = count > 0 && count === boxes(form).length;
    all.indeterminate = count > 0 && !all.checked;
  };
  all.closest('label').hidden = false;
  all.addEventListener('change', () => {
    for (const one of boxes(form)) one.checked = all.checked;
    tell();
  });
  document.addEventListener('change', ({target}) => target.form === form && target !== all && tell());
  tell(); // a page that is gone back to has them as they were
}

document.addEventListener('submit', (event) => {
  const {target: form, submitter} = event;
  if (form.matches('form[data-act]') && !boxes(form).some((one) => one.checked)) {
    event.preventDefault();
    form.querySelector('.gs-chosen').textContent = 'Choose at least one first.';
    boxes(form)[0]?.focus();
    return;
  }
  const body = new URLSearchParams(new FormData(form));
  if (form.matches('form[data-act]')) {
    event.preventDefault();
    go(`${submitter?.formAction ?? form.action}?${body}`);
  } else if (form.closest('.gs-dialog')) {
    event.preventDefault();
    if (submitter?.name) body.append(submitter.name, submitter.value);
    go(form.action, {method: 'POST', body});
  }
});
