// Tells when a workspace is there: in the tab's title, and by a notification of the browser where its user asked for one.
// For the hub's progress page, and the service's home.
window.gpuspawnerReady ??= (() => {
  'use strict';
  const WISH = 'gpuspawner-notify'; // whether this browser is to notify: permission alone may have been for something else
  const HIDDEN_SECONDS = 15; // between two looks while the tab is hidden; browsers extend it to a minute after a while
  const WAITS = ['queued', 'parked', 'reserved', 'starting'];
  const RUNS = ['running', 'reclaiming'];
  const READY = 'Ready - ';
  const waited = new Set(); // seen waiting by this page
  const told = new Set();

  const wish = {
    get: () => {
      try {
        return localStorage.getItem(WISH) === 'yes';
      } catch {
        return false; // a browser that keeps nothing asks each time
      }
    },
    set: (value) => {
      try {
        localStorage.setItem(WISH, value ? 'yes' : 'no');
      } catch {
        // As above.
      }
    },
  };

  // Why this browser can't notify on this page; "" where it can.
  const hindrance = () => {
    if (!window.isSecureContext) {
      return 'This page cannot notify you. Browsers allow it only over https or on localhost.';
    }
    if (!('Notification' in window)) return 'This browser has no notifications.';
    return Notification.permission === 'denied' ? 'This browser blocks notifications from this site. Allow them in the settings of your browser.' : '';
  };

  // In `node`: the button that asks for consent, or the reason why it is missing.
  const offer = (node) => {
    const why = hindrance();
    const on = !why && Notification.permission === 'granted' && wish.get();
    const words = document.createElement('span');
    words.className = 'gs-hint';
    words.textContent = why || (on ? 'This browser notifies you when it is ready, while this page is open.' : '');
    if (why) {
      node.replaceChildren(words);
      return;
    }
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'gs-button';
    button.textContent = on ? 'Do not notify me' : 'Notify me here when it is ready';
    button.addEventListener('click', async () => {
      wish.set(!on && (await Notification.requestPermission()) === 'granted');
      offer(node);
      node.querySelector('button')?.focus();
    });
    node.replaceChildren(...(on ? [words, button] : [button]));
  };

  const notify = (one) => {
    if (hindrance() || Notification.permission !== 'granted' || !wish.get()) return;
    try {
      const note = new Notification('Your workspace is ready', {
        body: one.arrival?.words ?? `${one.server || 'Your workspace'} runs.`,
        tag: `gpuspawner-${one.id}`, // one, however many pages are open
      });
      note.addEventListener('click', () => {
        window.focus();
        note.close();
      });
    } catch {
      // Some phones let only a service worker notify.
    }
  };

  const title = (state) => {
    const plain = document.title.replace(READY, '');
    document.title = state ? `${READY}${plain}` : plain;
  };

  // Take in one's workspaces as they are now.
  const see = (workspaces) => {
    for (const one of workspaces) if (WAITS.includes(one.phase)) waited.add(one.id);
    const came = workspaces.filter((one) => RUNS.includes(one.phase) && (one.arrival || (document.hidden && waited.has(one.id))));
    title(came.length > 0);
    for (const one of came) {
      if (told.has(one.id)) continue;
      told.add(one.id);
      if (document.hidden) notify(one);
    }
  };

  // Read the user's workspaces with `ask()` while the tab is hidden. The page asks for nothing else then.
  const watch = (ask) => {
    setInterval(async () => {
      if (!document.hidden) return;
      const workspaces = await ask().catch(() => null); // what stood there was true; the next look tells
      if (workspaces) see(workspaces);
    }, HIDDEN_SECONDS * 1000);
  };

  // The service's own pages, whose cookie asks.
  const own = document.getElementById('ready');
  if (own) {
    const headers = { 'X-XSRFToken': document.querySelector('meta[name=xsrf]').content };
    const ask = async () => {
      const response = await fetch(`${document.body.dataset.prefix}api/v1/workspaces`, { headers, redirect: 'error' });
      if (!response.ok) throw new Error(`answer ${response.status}`);
      return (await response.json()).workspaces;
    };
    offer(own);
    ask().then(see, () => {});
    watch(ask);
  }
  return { offer, see, watch };
})();
