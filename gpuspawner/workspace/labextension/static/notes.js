/* The results of the user's own variables, start-up script, repository and tools, shown once until closed. */
import { append, say } from './words.js';

const POLL_MILLISECONDS = 3000; // arbitrary: a script takes seconds to minutes

const ANSWERS = [['Install them again', 'once'], ['Always', 'always'], ['Never', 'never']];

/** Show the current step, the restored parts and the ignored parts. `ask()` resolves to {status, body} of the server
    extension, `answer(how)` sends the choice for missing packages. `done()` is called once all steps are done. */
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
      return; // an older server extension
    }
    if (status === 200 && body) {
      if (was && was !== body.busy) {
        done(); // also if it was closed: a new kernel may exist
      }
      was = body.busy;
      say(busy, body.busy);
      for (const text of body.notes.slice(list.children.length)) {
        append(list, 'li', '', text);
      }
      say(question, body.ask?.text ?? ''); // an older server extension sends no question
      actions.hidden = !body.ask;
      node.hidden = !body.busy && !body.notes.length && !body.ask;
      if (!body.busy && !body.ask) {
        return;
      }
    }
    const waits = status === 200 && body?.ask && !body.busy; // nothing happens before the user answers
    await new Promise(resolve => {
      answered = resolve;
      if (!waits) {
        setTimeout(resolve, POLL_MILLISECONDS);
      }
    });
  }
}
