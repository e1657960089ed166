/* The warning before a workspace ends: the measurements, a countdown and the possible actions. */
import { append, duration, endWords, firstSentence, icon, say } from './words.js';

const RESULT_SECONDS = 8; // time for which the result of Keep is shown after the warning; arbitrary: time to read it

export class Warning {
  /** `act(action)` is called with "keep" or "extend" when the user asks for it. */
  constructor(act) {
    this.closed = null;
    this.warning = null;
    this.resultUntil = 0;
    // First in the document: Tab from the top of the page reaches it before the rest of JupyterLab.
    this.node = document.createElement('section');
    this.node.className = 'gpuspawner-warning';
    this.node.setAttribute('aria-label', 'GPU workspace');
    this.node.hidden = true;
    document.body.prepend(this.node);
    const card = append(this.node, 'div', 'gpuspawner-card');
    icon(card, 'alert');
    this.text = append(card, 'div', 'gpuspawner-text');
    this.text.setAttribute('role', 'alert');
    this.heading = append(this.text, 'h2', 'gpuspawner-heading');
    this.text.append(' ');
    this.rest = append(this.text, 'p', 'gpuspawner-rest');
    this.countdown = append(card, 'p', 'gpuspawner-countdown');
    this.countdown.setAttribute('role', 'timer'); // screen readers do not read it every second, unlike the alert
    this.result = append(card, 'p', 'gpuspawner-result');
    this.result.setAttribute('role', 'status');
    this.actions = append(card, 'div', 'gpuspawner-actions');
    this.actions.title = 'Alt+Shift+G goes here';
    this._addButtons(this.actions, act);
    this._addClose(card);
    this.bar = append(append(this.node, 'span', 'gpuspawner-bar'), 'i', '');
    this.node.addEventListener('focusin', event => {
      if (event.relatedTarget && !this.node.contains(event.relatedTarget)) {
        this.cameFrom = event.relatedTarget;
      }
    });
  }

  /** Show `warning` of the workspace document, or remove it if that is null. */
  show(warning, workspace, page) {
    if (this.warning && !warning) {
      this._giveFocusBack(); // its buttons are removed
    }
    this.warning = warning;
    if (this.closed?.kind !== warning?.kind) {
      this.closed = null; // that warning is over: the next of its kind is shown again
    }
    if (!warning) {
      this._tell('');
      this.keep.hidden = this.extend.hidden = this.without.hidden = this.keeps.hidden = true;
      return;
    }
    this._tell(warning.text);
    this.keep.hidden = !warning.actions.includes('keep');
    this.extend.hidden = !warning.actions.includes('extend');
    if (!this.keep.hidden) {
      say(this.keep, `Keep for ${duration(workspace.keep.each_seconds)}`);
      say(this.keeps, `${workspace.keep.left} ${workspace.keep.left === 1 ? 'keep' : 'keeps'} left`);
    }
    this.keeps.hidden = this.keep.hidden;
    if (!this.extend.hidden) {
      say(this.extend, `Extend by ${duration(Math.min(workspace.extend.each_seconds, workspace.extend.left_seconds))}`);
    }
    this.more.hidden = !page;
    this.more.href = page || '';
    this.without.hidden = !page || !warning.actions.includes('without-gpu');
    this.without.href = page ? `${page}#go-on` : '';
  }

  _tell(text) {
    const [first, rest] = firstSentence(text);
    say(this.heading, first);
    say(this.rest, rest);
  }

  /** Show the time left. Called every second: `seconds` is null if it is not known, and `why` says why. */
  tick(seconds, why = '') {
    if (this.warning) {
      // A closed warning appears again after half of the remaining time, so that no end is a surprise.
      const reminded = this.closed && seconds !== null && seconds < this.closed.left / 2;
      say(this.countdown, seconds === null ? why : endWords(this.warning, 'Ends', 'Ending', seconds));
      this.longest = seconds === null ? null : Math.max(this.longest ?? 0, seconds);
      this.bar.style.width = this.longest ? `${(100 * Math.max(0, seconds)) / this.longest}%` : '0';
      this._setHidden(this.closed !== null && !reminded);
      this.secondsLeft = seconds;
    } else {
      this.longest = null;
      this.bar.style.width = '0';
      say(this.countdown, '');
      this._setHidden(Date.now() >= this.resultUntil);
    }
    if (Date.now() >= this.resultUntil) {
      say(this.result, '');
    }
  }

  /** Move the focus to the first action. */
  focus() {
    const first = [...this.actions.querySelectorAll('a, button'), this.close].find(element => !element.hidden);
    first.focus();
  }

  /** Show the result of a click. */
  showResult(words) {
    this.resultUntil = Date.now() + RESULT_SECONDS * 1000;
    say(this.result, words);
  }

  /** Prevent a second click before the first has an answer. Not by `disabled`, which would remove the focus. */
  set pending(value) {
    for (const button of [this.keep, this.extend]) {
      button.setAttribute('aria-disabled', String(value));
    }
  }

  _addButtons(parent, act) {
    for (const action of ['keep', 'extend']) {
      this[action] = append(parent, 'button', 'gpuspawner-button');
      this[action].addEventListener('click', event => {
        if (event.currentTarget.getAttribute('aria-disabled') !== 'true') {
          void act(action);
        }
      });
    }
    this.keep.classList.add('gpuspawner-primary');
    this.extend.classList.add('gpuspawner-primary');
    // What is lost is said on that page, before it is asked for there.
    this.without = append(parent, 'a', 'gpuspawner-button', 'Restart without GPU…');
    this.without.target = '_blank';
    this.without.rel = 'noopener';
    this.more = append(parent, 'a', 'gpuspawner-button gpuspawner-plain', 'Details');
    this.more.target = '_blank';
    this.more.rel = 'noopener';
    this.keeps = append(parent, 'small', 'gpuspawner-keeps');
  }

  _addClose(parent) {
    this.close = append(parent, 'button', 'gpuspawner-close');
    this.close.setAttribute('aria-label', 'Close');
    icon(this.close, 'x');
    this.close.addEventListener('click', () => {
      this.closed = this.warning && { kind: this.warning.kind, left: this.secondsLeft ?? Infinity };
      this.resultUntil = 0;
      this._setHidden(true);
    });
  }

  _setHidden(hidden) {
    if (hidden) {
      this._giveFocusBack();
    }
    this.node.hidden = hidden;
  }

  _giveFocusBack() {
    if (this.node.contains(document.activeElement)) {
      this.cameFrom?.focus();
    }
  }
}
