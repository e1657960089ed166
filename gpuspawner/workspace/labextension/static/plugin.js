/* The plugin: shows the answers of this server's gpuspawner extension. */
import { Ended, whyEnded } from './ended.js';
import { Messages } from './messages.js';
import { Meter } from './meter.js';
import { tellOfStart } from './notes.js';
import { Warning } from './warning.js';
import { duration } from './words.js';

const POLL_SECONDS = 5; // arbitrary: a fresh meter with little load for the server
const POLL_FAST_SECONDS = 2; // if a demonstration scales a policy's minutes to seconds
const POLL_REFUSED_SECONDS = 30; // after an error or the end: repeated requests must not fill its log
const ANSWER_MILLISECONDS = 8000; // more than the server extension's own limit of 5 s
// A running workspace server that cannot reach the hub for sign-in answers in JSON: nothing has ended. A proxy before
// a server that is gone also answers 502, with its own text.
const HUB_AWAY = [500, 502];
const ENDED = 'This workspace has ended, or its server cannot be reached. Files that were saved stay.';
const NO_ANSWER = 'Neither this workspace nor the hub answers: is this computer online? A workspace runs on without its page.';

/** Ask our server extension. Resolves to {status, body}. Status 0: no answer. Body null: a foreign answer. */
async function ask(baseUrl, method, path, sent = null) {
  const xsrf = /(?:^|; )_xsrf=([^;]*)/.exec(document.cookie);
  try {
    const response = await fetch(`${baseUrl}gpuspawner/${path}`, {
      method,
      cache: 'no-store',
      credentials: 'same-origin',
      body: sent && JSON.stringify(sent),
      headers: { Accept: 'application/json', ...(xsrf ? { 'X-XSRFToken': xsrf[1] } : {}) },
      signal: AbortSignal.timeout(ANSWER_MILLISECONDS)
    });
    return { status: response.status, body: await response.json().catch(() => null) };
  } catch {
    return { status: 0, body: null };
  }
}

/** The server's data in the page, from its load. */
function config() {
  return JSON.parse(document.getElementById('jupyter-config-data')?.textContent || '{}');
}

class Watch {
  constructor(shellNode, baseUrl) {
    this.baseUrl = baseUrl;
    this.warning = new Warning(action => this.act(action));
    this.messages = new Messages();
    this.ended = new Ended(() => this.why && this.showEnded());
    this.shellNode = shellNode;
    this.turn = 0;
    this.unanswered = 0;
    this.why = ''; // set once the end is known
    this.nextPoll = 0;
    this.timer = setInterval(() => this.tick(), 1000);
    document.addEventListener('visibilitychange', () => {
      this.nextPoll = 0;
      this.tick();
    });
    this.tick();
  }

  /** Each second, while the page is visible: update the countdown and ask the server when it is time. */
  tick() {
    if (document.hidden || !this.timer) {
      return;
    }
    this.showTime();
    if (Date.now() >= this.nextPoll) {
      void this.poll();
    }
  }

  async poll() {
    this.nextPoll = Infinity;
    const turn = ++this.turn;
    const answer = await ask(this.baseUrl, 'GET', 'state');
    if (turn !== this.turn) {
      return; // a click was faster: its answer is newer
    }
    try {
      this.take(answer);
    } finally {
      const pause = this.workspace?.fast ? POLL_FAST_SECONDS : POLL_SECONDS;
      this.nextPoll = Date.now() + (answer.status >= 400 ? POLL_REFUSED_SECONDS : pause) * 1000;
    }
    this.showTime();
  }

  /** Carry out Keep or Extend, then show the result from the new state of the workspace. */
  async act(action) {
    this.turn += 1;
    this.nextPoll = Infinity;
    this.warning.pending = true;
    const { status, body } = await ask(this.baseUrl, 'POST', action);
    await this.poll();
    this.warning.pending = false;
    const failed = action === 'keep' ? 'Not kept' : 'Not extended';
    if (status === 200 && !body?.away) {
      this.warning.showResult(this.done(action));
    } else if (body?.error) {
      this.warning.showResult(`${failed}: ${body.error.message}`);
    } else {
      const who = body?.away ? 'the GPU service is away' : 'this server did not answer';
      this.warning.showResult(`${failed}: ${who}. Try again.`);
    }
    this.showTime();
  }

  /** The result of a successful Keep or Extend. */
  done(action) {
    if (action === 'extend') {
      const left = this.secondsTo(this.workspace?.ends_at);
      return left === null ? 'Extended.' : `Extended: ends in ${duration(left)}.`;
    }
    const keep = this.workspace?.keep;
    return keep ? `Kept for ${duration(keep.each_seconds)}; ${keep.left} left.` : 'Kept.';
  }

  take({ status, body }) {
    const first = !this.meter;
    if (body?.absent || (first && status === 404)) {
      clearInterval(this.timer); // no GPU service behind this server, or no server extension: stay silent
      this.timer = 0;
      return;
    }
    this.meter ??= new Meter(this.shellNode);
    this.unanswered = status === 0 ? this.unanswered + 1 : 0;
    const hubAway = HUB_AWAY.includes(status) && Boolean(body?.message);
    const unreached = this.unanswered > 1 && !this.why; // one request may be lost
    this.away = Boolean(body?.away) || hubAway || unreached;
    if (status === 200 && body && !this.away) {
      this.workspace = body;
      this.clockOffset = body.now - Date.now() / 1000;
      this.page = this.hubUrl(body.page);
      this.ended.hide();
      this.why = '';
      this.meter.show(body, this.page);
      this.messages.show(body.messages ?? []); // an older service sends none
      const [other] = body.elsewhere ?? []; // another workspace of this user, started meanwhile
      if (other && !body.warning) {
        const told = { kind: `elsewhere ${other.id}`, text: other.text, ends_at: null, actions: [] };
        this.warning.show(told, body, this.hubUrl(other.page));
      } else {
        this.warning.show(body.warning, body, this.page);
      }
    } else if (unreached) {
      this.meter.showNote('No answer', this.page, NO_ANSWER);
    } else if (this.away) {
      const [who, why] = hubAway ? ['Hub away', 'no answer from it'] : ['GPU service away', body.message];
      this.meter.showNote(who, this.page, `${why}. This workspace runs on.`);
    } else if (body?.error) {
      this.meter.showNote(`GPU: ${body.error.message}`, this.page);
    } else if (status === 403) {
      this.meter.showNote('GPU: sign in again', null);
    } else if (status !== 0) {
      this.workspace = null; // an answer of the hub (424, 503)
      this.meter.showNote('Workspace ended', this.page);
      this.showEnded();
      void this.tellWhy(this.turn);
    }
  }

  /** Ask why it ended and show the reason once it is known. A server that is only unreachable opens no dialog. */
  async tellWhy(turn) {
    const hub = this.page && this.hubUrl(config().hubPrefix || '/hub/');
    const why = hub && (await whyEnded(this.page, hub));
    if (why && turn === this.turn && !this.why) {
      this.why = why;
      this.ended.show(why, this.page);
      this.showEnded();
    }
  }

  /** Show it on the page, unless the dialog shows it. */
  showEnded() {
    const told = { kind: 'ended', text: this.why || ENDED, ends_at: null, actions: [] };
    this.warning.show(this.ended.open ? null : told, null, this.page);
    this.showTime();
  }

  showTime() {
    const workspace = this.workspace;
    const warned = workspace?.warning ? this.secondsTo(workspace.warning.ends_at) : null;
    if (this.away) {
      this.warning.tick(null, 'The hub or its GPU service is away. The time left is not known.');
      return;
    }
    this.warning.tick(warned);
    const ends = this.secondsTo(workspace?.ends_at);
    const soonest = warned === null ? ends : Math.min(warned, ends ?? Infinity);
    this.meter?.showLeft(soonest, warned === null ? null : workspace.warning);
  }

  /** Seconds from now to a time by the service's clock, or null. */
  secondsTo(moment) {
    return typeof moment === 'number' ? moment - (Date.now() / 1000 + this.clockOffset) : null;
  }

  /** An address at the hub, null for any other address. */
  hubUrl(path) {
    const hub = new URL(config().hubHost || '/', this.baseUrl);
    const page = new URL(path, hub);
    return page.origin === hub.origin ? page.href : null;
  }
}

function addStyle() {
  const link = document.createElement('link');
  link.rel = 'stylesheet';
  link.href = new URL('gpuspawner.css', import.meta.url).href;
  document.head.append(link);
}

export default {
  id: 'gpuspawner:plugin',
  description: 'Shows the GPUs of this workspace, the time left, and warnings before it ends.',
  autoStart: true,
  activate(app) {
    addStyle();
    const { baseUrl } = app.serviceManager.serverSettings;
    const watch = new Watch(app.shell.node, baseUrl);
    void tellOfStart(
      () => ask(baseUrl, 'GET', 'home'),
      () => app.serviceManager.kernelspecs.refreshSpecs(),
      how => ask(baseUrl, 'POST', 'home', { install: how })
    );
    // Editors and terminals use the Tab key. This key moves the focus from them to the warning.
    app.commands.addCommand('gpuspawner:warning', {
      label: 'Go to the GPU Workspace Warning',
      execute: () => watch.warning.focus()
    });
    app.commands.addKeyBinding({ command: 'gpuspawner:warning', keys: ['Alt Shift G'], selector: 'body' });
  }
};
