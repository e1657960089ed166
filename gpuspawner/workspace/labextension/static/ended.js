/* Why the workspace was stopped, above JupyterLab's own "Server unavailable", which knows no reason.
 * A modal dialog is in the browser's top layer, over everything that JupyterLab opens before or after it. */
import { append, say } from './words.js';

const ANSWER_MILLISECONDS = 8000;

/**
 * Ask the service why a workspace ended. Its server is gone, but its user is signed in to the hub, which gives a ticket
 * for the service. Resolves to the reason in words, or "" if it is not known.
 *
 * `page` is the workspace's page at the service, `hub` the hub's prefix, both whole addresses on this page's origin.
 */
export async function whyEnded(page, hub) {
  const options = { cache: 'no-store', credentials: 'same-origin', signal: AbortSignal.timeout(ANSWER_MILLISECONDS) };
  try {
    const { ticket } = await (await fetch(`${hub}gpuspawner/ticket`, options)).json();
    const address = page.replace('/workspaces/', '/api/v1/workspaces/');
    const answer = await fetch(address, { ...options, headers: { Authorization: `ticket ${ticket}` } });
    return (answer.ok && (await answer.json()).end?.why) || '';
  } catch {
    return ''; // the hub or the service is unreachable too, or on another host
  }
}

export class Ended {
  /** `closed()` is called when the user has closed it. */
  constructor(closed) {
    this.node = document.createElement('dialog');
    this.node.addEventListener('close', closed);
    this.node.className = 'gpuspawner-ended';
    this.node.setAttribute('aria-labelledby', 'gpuspawner-ended-heading');
    append(this.node, 'h2', 'gpuspawner-heading', 'This workspace was stopped').id = 'gpuspawner-ended-heading';
    this.why = append(this.node, 'p', 'gpuspawner-why');
    append(this.node, 'p', 'gpuspawner-stays', 'Your files are safe, as last saved. Changes on this page are no longer saved.');
    const actions = append(this.node, 'div', 'gpuspawner-actions');
    this.page = append(actions, 'a', 'gpuspawner-button gpuspawner-primary', 'See why and start again');
    this.page.target = '_blank';
    this.page.rel = 'noopener';
    const close = append(actions, 'button', 'gpuspawner-button', 'Close');
    close.addEventListener('click', () => this.node.close());
    document.body.append(this.node);
  }

  /** Open it, with the reason and a link to the details. */
  show(why, page) {
    say(this.why, why);
    this.page.href = page;
    if (!this.node.open) {
      this.node.showModal();
    }
  }

  get open() {
    return this.node.open;
  }

  /** The workspace runs again. */
  hide() {
    this.node.close();
  }
}
