/* What came of the user's own variables, start-up script, repository and tools: told once, until it is closed. */
import { append, say } from './words.js';

const POLL_MILLISECONDS = 3000; // arbitrary: a script takes seconds to minutes

const ANSWERS = [['Install them again', 'once'], ['Always', 'always'], ['Never', 'never']];

/** Tell what is under way, what came back and what was passed over. `ask()` resolves to {status, body} of the server
    extension, `answer(how)` sends what is to be done with packages that are missing. `done()` is called once something
    was done that was under way. */
export async function tellOfStart(ask, done, answer) {
  const node = document.createElement('section');
  node.className = 'gpuspawner-notes';
  node.setAttribute('aria-label', 'Start of this workspace');
  node.hidden = true;
  document.body.append(node);
  const busy = append(node, 'p', 'gpuspawner-busy');
  busy.setAttribute('role', 'status');
  const list = append(node, 'ul', 'gpuspawner-told');
  list.setAttribute('aria-live', 'polite');
  const question = append(node, 'p', 'gpuspawner-question');
  question.setAttribute('aria-live', 'polite');
  const actions = append(node, 'div', 'gpuspawner-actions');
  let answered = () => {};
  for (const [words, how] of ANSWERS) {
    const button = append(actions, 'button', 'gpuspawner-button', words);
    button.addEventListener('click', () => void answer(how).then(() => answered()));
  }
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
      say(question, body.ask?.text ?? ''); // a server extension of before asks nothing
      actions.hidden = !body.ask;
      node.hidden = !body.busy && !body.notes.length && !body.ask;
      if (!body.busy && !body.ask) {
        return;
      }
    }
    const waits = status === 200 && body?.ask && !body.busy; // nothing happens until somebody answers
    await new Promise(resolve => {
      answered = resolve;
      if (!waits) {
        setTimeout(resolve, POLL_MILLISECONDS);
      }
    });
  }
}
