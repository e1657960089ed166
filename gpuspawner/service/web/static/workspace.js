// Refreshes a page in place: fetches it again and takes over the parts marked data-live. Without it the page is as of
// its load, and everything on it works all the same.
const SECONDS = 5;
const stale = document.getElementById('stale');
const xsrf = document.querySelector('meta[name=xsrf]').content;
const main = document.getElementById('main');
const url = main.dataset.url ?? location.pathname; // after a form that failed, the address is the form's
let refreshedAt = new Date();

// Takes over what differs and nothing else: focus, selection and scrolling stay, and an alert is read out only when its
// words change. What leads or acts elsewhere is another thing, however alike it looks.
function patch(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  const other = ['id', 'role', 'href', 'action'].some((name) => old.getAttribute?.(name) !== fresh.getAttribute?.(name));
  if (old.nodeName !== fresh.nodeName || other) {
    old.replaceWith(fresh);
  } else if (old.nodeType !== Node.ELEMENT_NODE) {
    old.data = fresh.data;
  } else {
    for (const {name} of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const {name, value} of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const [before, after] = [[...old.childNodes], [...fresh.childNodes]];
    after.forEach((node, i) => (i < before.length ? patch(before[i], node) : old.append(node)));
    before.slice(after.length).forEach((node) => node.remove());
  }
}

async function refresh() {
  let page;
  try {
    const response = await fetch(url, {headers: {'X-XSRFToken': xsrf}, redirect: 'error'});
    if (!response.ok) throw new Error(response.status === 403 ? 'you are no longer signed in' : `answer ${response.status}`);
    page = new DOMParser().parseFromString(await response.text(), 'text/html');
  } catch (error) {
    const why = error instanceof TypeError ? 'the service does not answer' : error.message;
    stale.textContent = `These numbers are of ${refreshedAt.toLocaleTimeString('en-GB')}: ${why}.`;
    return;
  }
  refreshedAt = new Date();
  stale.textContent = '';
  if (page.getElementById('main').dataset.shape !== main.dataset.shape) {
    location.replace(url); // what can be done has changed, not only numbers
    return;
  }
  for (const part of document.querySelectorAll('[data-live]')) {
    const fresh = page.getElementById(part.id);
    if (fresh) patch(part, fresh);
  }
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

if (document.querySelector('[data-live]')) {
  const ended = main.dataset.shape?.startsWith('ended');
  setInterval(() => document.hidden || ended || refresh(), SECONDS * 1000);
  document.addEventListener('visibilitychange', () => document.hidden || ended || refresh());
}
const unread = document.getElementById('seen');
if (unread) markSeen(unread).catch(() => {});
