// Refreshes a page in place: fetches it again and takes over the parts marked data-live. Without it the page is as of
// its load, and everything on it works all the same.
const SECONDS = 5;
const stale = document.getElementById('stale');
const xsrf = document.querySelector('meta[name=xsrf]').content;
const main = document.getElementById('main');
const url = main.dataset.url ?? location.pathname; // after a form that failed, the address is the form's
let refreshedAt = new Date();

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
    // A part that somebody is using by keyboard stays: nobody's focus is taken away.
    if (!fresh || part.innerHTML === fresh.innerHTML || part.contains(document.activeElement)) continue;
    const scrolled = [...part.querySelectorAll('.gs-scroll')].map((box) => [box.scrollLeft, box.scrollTop]);
    part.replaceChildren(...fresh.childNodes);
    part.querySelectorAll('.gs-scroll').forEach((box, i) => scrolled[i] && box.scrollTo(...scrolled[i]));
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
