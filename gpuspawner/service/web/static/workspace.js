// Refreshes a page in place: fetches it again and takes over the parts marked data-live. Without it the page is as of
// its load, and everything on it works all the same. It asks when the service says that something has changed, and
// every half minute, also where no stream of events is to be had: what is told as time left goes on.
const SECONDS = 30;
const SOON_SECONDS = 5; // where the seconds left until one's own end are counted, and while nothing answers
const SOON = '#mine [data-soon], #stats [data-soon]';
const stale = document.getElementById('stale');
const xsrf = document.querySelector('meta[name=xsrf]').content;
const main = document.getElementById('main');
const url = main.dataset.url ?? location.pathname; // after a form that failed, the address is the form's
let refreshedAt = new Date();

// Updates only what differs, so that focus, selection and scrolling stay. An alert is read out only when its words
// change. An element with another target or action is replaced, even if it looks the same.
function patch(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  const other = ['id', 'role', 'href', 'action'].some((name) => old.getAttribute?.(name) !== fresh.getAttribute?.(name));
  if (old.nodeName !== fresh.nodeName || other) {
    old.replaceWith(fresh);
  } else if (old.nodeType !== Node.ELEMENT_NODE) {
    old.data = fresh.data;
  } else {
    for (const {name} of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== 'open') old.removeAttribute(name); // opened sections stay open
    for (const {name, value} of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const [before, after] = [[...old.childNodes], [...fresh.childNodes]];
    after.forEach((node, i) => (i < before.length ? patch(before[i], node) : old.append(node)));
    before.slice(after.length).forEach((node) => node.remove());
  }
}

// At the top, with the way back: this page, asked for again, signs in first.
function tellSignedOut() {
  if (document.getElementById('signed-out')) return;
  const note = document.createElement('p');
  note.id = 'signed-out';
  note.className = 'gs-note gs-warn';
  note.setAttribute('role', 'alert');
  const link = document.createElement('a');
  link.href = url;
  link.textContent = 'Sign in again';
  note.append(`You are signed out. These numbers are from ${refreshedAt.toLocaleTimeString('en-GB', {timeZone: document.body.dataset.zone})}. `, link, ' to go on.');
  main.prepend(note);
}

async function refresh() {
  let page;
  try {
    const response = await fetch(url, {headers: {'X-XSRFToken': xsrf}, redirect: 'error'});
    if (response.status === 403) {
      tellSignedOut();
      return;
    }
    if (!response.ok) throw new Error(`answer ${response.status}`);
    page = new DOMParser().parseFromString(await response.text(), 'text/html');
  } catch (error) {
    const why = error instanceof TypeError ? 'the service does not answer' : error.message;
    stale.textContent = `Not live. These numbers are from ${refreshedAt.toLocaleTimeString('en-GB', {timeZone: document.body.dataset.zone})}: ${why}. We try again.`;
    return;
  }
  refreshedAt = new Date();
  stale.textContent = '';
  document.getElementById('signed-out')?.remove();
  document.body.dataset.version = page.body.dataset.version;
  document.title = page.title;
  patch(document.getElementById('icon'), page.getElementById('icon'));
  if (page.getElementById('main').dataset.shape !== main.dataset.shape) {
    location.replace(url); // what can be done has changed, not only numbers
    return;
  }
  for (const part of document.querySelectorAll('[data-live]')) {
    const fresh = page.getElementById(part.id);
    if (fresh) patch(part, fresh);
  }
  document.dispatchEvent(new CustomEvent('fresh', {detail: page}));
}

// Reading why a workspace ended is what marks it as read: by this page's own POST, never by the GET.
async function markSeen(form) {
  const response = await fetch(form.dataset.action, {
    method: 'POST',
    headers: {'X-XSRFToken': xsrf},
    redirect: 'manual',
  });
  if (response.ok || response.type === 'opaqueredirect') form.remove();
}

let stream;
let timer;

// Hears what changes until the stream ends or the page is hidden. By fetch, since EventSource sends no header.
async function listen() {
  if (stream || document.hidden) return;
  stream = new AbortController();
  const opened = Date.now();
  try {
    const {prefix, version} = document.body.dataset;
    const headers = {'X-XSRFToken': xsrf};
    const response = await fetch(`${prefix}api/v1/events?since=${version}`, {headers, signal: stream.signal, redirect: 'error'});
    if (!response.ok) return;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = '';
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      const events = (text + value).split('\n\n');
      text = events.pop();
      if (events.some((event) => event.startsWith('event: changed'))) ask();
    }
  } catch {
    // No stream now: the next time this page asks, it tries again.
  } finally {
    stream = undefined;
    if (Date.now() - opened > SECONDS * 1000 && !document.hidden) { // it worked: the service restarts, perhaps
      clearTimeout(timer);
      timer = setTimeout(ask, SOON_SECONDS * Math.random() * 1000);
    }
  }
}

// Milliseconds until the next ask where no event comes before: never the same for all pages.
function pause() {
  return (stale.textContent || document.querySelector(SOON) ? SOON_SECONDS : SECONDS) * (0.8 + 0.4 * Math.random()) * 1000;
}

async function ask() {
  clearTimeout(timer);
  if (document.hidden) return;
  await refresh();
  clearTimeout(timer);
  timer = setTimeout(ask, pause());
  listen();
}

if (document.querySelector('[data-live]') && !main.dataset.shape?.startsWith('ended')) {
  timer = setTimeout(ask, pause());
  listen();
  document.addEventListener('visibilitychange', () => (document.hidden ? stream?.abort() : ask()));
}
const unread = document.getElementById('seen');
if (unread) markSeen(unread).catch(() => {});
// A link from a mail, or from JupyterLab, leads to a question: its fold or its dialog opens.
function openAsked() {
  const name = CSS.escape(location.hash.slice(1));
  const asked = name && document.querySelector(`#${name}, dialog[id^="${name}-"]`);
  if (asked instanceof HTMLDetailsElement) asked.open = true;
  if (asked instanceof HTMLDialogElement && !asked.open) asked.showModal();
}
openAsked();
addEventListener('hashchange', openAsked);
