// Opens acts in a dialog over the page. Without JavaScript the same links and buttons open a page. The browser keeps the
// focus within the dialog, closes it by Escape, and returns the focus to the button that opened it.
const token = document.querySelector('meta[name=xsrf]').content;
let dialog;

async function show(url, options = {}) {
  const response = await fetch(url, {headers: {'X-XSRFToken': token}, ...options});
  const page = new DOMParser().parseFromString(await response.text(), 'text/html');
  const part = page.getElementById('act');
  if (!part) { // the act is done, or the reader has to sign in: follow the redirect
    location.assign(response.redirected ? response.url : url);
    return;
  }
  if (!dialog) {
    dialog = document.createElement('dialog');
    dialog.className = 'gs-dialog gs-broad';
    dialog.setAttribute('aria-labelledby', 'act-title');
    document.getElementById('main').append(dialog);
  }
  dialog.replaceChildren(...part.childNodes);
  if (!dialog.open) dialog.showModal();
  const first = dialog.querySelector('[role=alert], [aria-invalid=true], [role=status]') ?? dialog.querySelector('h1');
  first.focus(); // a screen reader reads what is new first
}

// A question that the page of a workspace asks. Its forms come back to this page.
async function openQuestion({href, hash}) {
  const response = await fetch(href, {headers: {'X-XSRFToken': token}, redirect: 'error'});
  const page = new DOMParser().parseFromString(await response.text(), 'text/html');
  const question = page.querySelector(`dialog[id^="${hash.slice(1)}-"]`);
  for (const form of question.querySelectorAll('form')) {
    form.append(Object.assign(document.createElement('input'), {type: 'hidden', name: 'back', value: 'home'}));
  }
  document.body.append(question);
  question.addEventListener('close', () => question.remove());
  question.showModal();
}

const go = (url, options) => show(url, options).catch(() => location.assign(url)); // the page itself says what is wrong

document.addEventListener('click', (event) => {
  if (event.target.closest('[data-print]')) print();
  const link = event.target.closest('a');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (link.matches('[data-act]')) {
    event.preventDefault();
    link.closest('[popover]')?.hidePopover();
    go(link.href);
  } else if (link.matches('[data-ask]')) {
    event.preventDefault();
    link.closest('[popover]')?.hidePopover();
    openQuestion(link).catch(() => location.assign(link.href)); // that page asks, too
  } else if (link.matches('.gs-dialog [data-close]')) {
    event.preventDefault();
    dialog.close();
  }
});

const boxes = (form) => [...form.elements].filter((one) => one.name === 'ids');

document.addEventListener('submit', (event) => {
  const {target: form, submitter} = event;
  if (form.matches('form[data-act]')) {
    event.preventDefault();
    if (boxes(form).some((one) => one.checked)) {
      go(`${submitter?.formAction ?? form.action}?${new URLSearchParams(new FormData(form))}`);
    } else {
      form.querySelector('[data-count]').textContent = 'Select at least one row first';
      boxes(form)[0]?.focus();
    }
  } else if (dialog?.contains(form) && form.method === 'post') {
    event.preventDefault();
    const body = new URLSearchParams(new FormData(form));
    if (submitter?.name) body.append(submitter.name, submitter.value);
    go(form.action, {method: 'POST', body});
  }
});

// Takes fresh values into the rows of a list without moving a row. A row that is gone stays, marked. New rows are
// counted, with a link that shows them.
document.addEventListener('fresh', ({detail: page}) => {
  for (const body of document.querySelectorAll('[data-rows]')) {
    const fresh = new Map([...(page.getElementById(body.id)?.rows ?? [])].map((row) => [row.dataset.key, row]));
    for (const row of body.rows) {
      const now = fresh.get(row.dataset.key);
      fresh.delete(row.dataset.key);
      row.classList.toggle('gs-gone', !now);
      row.title = now ? '' : 'No longer on this page of the list';
      if (now) [...row.cells].forEach((cell, i) => cell.querySelector('input, button') || patch(cell, now.cells[i]));
    }
    showNew(body, fresh.size);
  }
});

function showNew(body, count) {
  const id = `${body.id}-new`;
  let note = document.getElementById(id);
  if (!count) {
    note?.remove();
    return;
  }
  if (!note) {
    note = document.createElement('p');
    note.id = id;
    note.className = 'gs-note';
    note.setAttribute('role', 'status');
    body.closest('.gs-scroll').before(note);
  }
  const link = document.createElement('a');
  link.href = location.href;
  link.textContent = 'Show the list as it is now';
  note.replaceChildren(`${count} more ${count === 1 ? 'row belongs' : 'rows belong'} on this page. `, link);
}
