/* What came of the user's own variables, start-up script, repository and tools: told once, until it is closed. */
import { append, say } from './words.js';

const POLL_MILLISECONDS = 3000; // arbitrary: a script takes seconds to minutes

/** Tell what is under way and what was passed over. `ask()` resolves to {status, body} of the server extension.
    `done()` is called once something was done that was under way. */
export async function tellOfStart(ask, done) {
  const node = document.createElement('section');
  node.className = 'gpuspawner-notes';
  node.setAttribute('aria-label', 'Start of this workspace');
  node.hidden = true;
  document.body.append(node);
  const busy = append(node, 'p', 'gpuspawner-busy');
  busy.setAttribute('role', 'status');
  const list = append(node, 'ul', 'gpuspawner-told');
  list.setAttribute('aria-live', 'polite');
  const close = append(node, 'button', 'gpuspawner-button', 'Close');
  close.addEventListener('click', () => node.remove());
  let was = '';
  for (;;) {
    const { status, body } = await ask();
    if (status === 404) {
      return; // a server extension of before
    }
    if (status === 200 && body) {
      if (was && was !== body.busy) {
        done(); // also where it was closed: a kernel of its own may be there
      }
      was = body.busy;
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
