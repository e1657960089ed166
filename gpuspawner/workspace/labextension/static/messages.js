/* Announcements of administrators to this workspace's user, above JupyterLab until closed here or read on a page. */
import { append } from './words.js';

const CLOSED = 'gpuspawner:messages-closed'; // their ids, in this browser

export class Messages {
  constructor() {
    this.node = document.createElement('section');
    this.node.className = 'gpuspawner-messages';
    this.node.setAttribute('aria-label', 'Messages');
    this.node.setAttribute('role', 'status');
    document.body.prepend(this.node);
    this.shown = new Map(); // by id: built once, so that the focus is kept
  }

  /** Show the `messages` of the workspace document: all that are not read. */
  show(messages) {
    const closed = this.closed;
    const wanted = messages.filter(one => !closed.includes(one.id));
    for (const [id, note] of this.shown) {
      if (!wanted.some(one => one.id === id)) {
        note.remove();
        this.shown.delete(id);
      }
    }
    for (const one of wanted) {
      if (!this.shown.has(one.id)) {
        this.shown.set(one.id, this._build(one));
      }
    }
  }

  get closed() {
    try {
      const closed = JSON.parse(localStorage.getItem(CLOSED));
      return Array.isArray(closed) ? closed : [];
    } catch {
      return []; // no storage, or a foreign text in it
    }
  }

  _build(one) {
    const note = append(this.node, 'div', 'gpuspawner-message');
    const text = append(note, 'p', 'gpuspawner-said', one.text);
    append(text, 'span', 'gpuspawner-from', ` ${one.by}, until ${one.until_words}`);
    const close = append(note, 'button', 'gpuspawner-button', 'Close');
    close.setAttribute('aria-label', `Close the message from ${one.by}`);
    close.addEventListener('click', () => {
      try {
        localStorage.setItem(CLOSED, JSON.stringify([...this.closed, one.id].slice(-100)));
      } catch {
        // No storage: it appears again on the next page.
      }
      note.remove();
    });
    return note;
  }
}
