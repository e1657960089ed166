/* What came of the user's own variables, start-up script and repository: told once, until it is closed. */
import { append, say } from './words.js';

const POLL_MILLISECONDS = 3000; // arbitrary: a script takes seconds to minutes

/** Tell what is under way and what was passed over. `ask()` resolves to {status, body} of the server extension. */
export async function tellOfStart(ask) {
  const node = document.createElement('section');
  node.className = 'gpuspawner-notes';
  node.setAttribute('aria-label', 'Start of this workspace');
  node.hidden = true;
  document.body.append(node);
  const busy = append(node, 'p', 'gpuspawner-busy');
  busy.setAttribute('role', 'status');
  const list = append(node, 'ul', 'gpuspawner-told');
  list.setAttribute('aria-live', 'polite');
  const close = append(node, 'button', '', 'Close');
  close.addEventListener('click', () => node.remove());
  for (;;) {
    const { status, body } = await ask();
    if (status === 404 || !node.isConnected) {
      return; // a server extension of before, or closed
    }
    if (status === 200 && body) {
      say(busy, body.busy);
      for (const text of body.notes.slice(list.children.length)) {
        append(list, 'li', '', text);
      }
      node.hidden = !body.busy && !body.notes.length;
      if (!body.busy) {
        return;
      }
    }
    await new Promise(resolve => setTimeout(resolve, POLL_MILLISECONDS));
  }
}
