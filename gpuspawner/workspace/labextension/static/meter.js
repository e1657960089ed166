/* The item in the top bar: each GPU's utilization, and the time left. */
import { append, duration, gibibytes, say } from './words.js';

export class Meter {
  /** Add the item to the top bar of JupyterLab (#jp-top-panel) or of Notebook 7 (#top-panel). */
  constructor(shellNode) {
    this.node = document.createElement('a');
    this.node.className = 'gpuspawner-meter';
    this.node.target = '_blank';
    this.node.rel = 'noopener';
    this.note = append(this.node, 'span', 'gpuspawner-note');
    this.gpus = append(this.node, 'span', 'gpuspawner-gpus');
    this.simulated = append(this.node, 'span', 'gpuspawner-simulated');
    this.idle = append(this.node, 'span', 'gpuspawner-idle');
    this.left = append(this.node, 'span', 'gpuspawner-left');
    this.goOn = document.createElement('a');
    this.goOn.className = 'gpuspawner-go-on';
    this.goOn.target = '_blank';
    this.goOn.rel = 'noopener';
    this.goOn.hidden = true;
    (shellNode.querySelector('#jp-top-panel, #top-panel') || document.body).append(this.node, this.goOn);
  }

  /** Show the workspace document. */
  show(workspace, page) {
    const inNumbers = workspace.gpus.length > 0;
    say(this.note, inNumbers ? '' : 'No GPU');
    this._showGpus(workspace.gpus);
    say(this.simulated, workspace.simulated ? 'simulated' : '');
    const idle = workspace.idle;
    const counts = idle && idle.state !== 'busy' && idle.idle_seconds > 0;
    const needed = counts && idle.idle_seconds < idle.for_seconds ? ` of ${duration(idle.for_seconds)}` : '';
    say(this.idle, counts ? `idle ${duration(idle.idle_seconds)}${needed}` : '');
    this._describe([workspace.words, ...workspace.gpus.map(details), idle ? idle.because : '']);
    this._link(page);
    this._showGoingOn(workspace.going_on, page);
  }

  /** Link to the page to continue without or with a GPU. The page says first what is lost. */
  _showGoingOn(goingOn, page) {
    this.goOn.hidden = !goingOn || Boolean(goingOn.why) || !page; // an older service sends none
    if (!this.goOn.hidden) {
      say(this.goOn, goingOn.action === 'with-gpu' ? 'With a GPU…' : 'Without a GPU…');
      this.goOn.title = goingOn.words;
      this.goOn.href = `${page}#go-on`;
    }
  }

  /** Show a sentence instead of numbers that may be old. */
  showNote(note, page, why = '') {
    say(this.note, note);
    this.gpus.replaceChildren();
    this.goOn.hidden = true;
    for (const part of [this.simulated, this.idle, this.left]) {
      say(part, '');
    }
    this._describe([why]);
    this._link(page);
  }

  /** Show the seconds left, null for no known end. */
  showLeft(seconds, warned) {
    say(this.left, seconds === null ? '' : seconds > 0 ? `ends in ${duration(seconds)}` : 'ending now');
    this.left.classList.toggle('gpuspawner-warned', warned);
  }

  _showGpus(gpus) {
    while (this.gpus.childElementCount > gpus.length) {
      this.gpus.lastElementChild.remove();
    }
    while (this.gpus.childElementCount < gpus.length) {
      const entry = append(this.gpus, 'span', 'gpuspawner-gpu');
      append(entry, 'span', 'gpuspawner-label');
      append(append(entry, 'span', 'gpuspawner-bar'), 'span', 'gpuspawner-fill');
      append(entry, 'span', 'gpuspawner-value');
    }
    this.gpus.classList.toggle('gpuspawner-many', gpus.length > 2);
    gpus.forEach((gpu, position) => {
      const [label, bar, value] = this.gpus.children[position].children;
      const named = position === 0 || model(gpu) !== model(gpus[position - 1]);
      const percent = gpu.utilization_percent;
      const known = typeof percent === 'number';
      say(label, named ? `${model(gpu)} ${gpu.index}:` : `${gpu.index}:`);
      say(value, known ? `${Math.round(percent)} %` : 'unknown');
      bar.classList.toggle('gpuspawner-unknown', !known);
      bar.firstElementChild.style.width = `${known ? Math.min(100, Math.max(0, percent)) : 0}%`;
    });
  }

  _describe(lines) {
    this.node.title = lines.filter(Boolean).join('\n');
  }

  _link(page) {
    if (page) {
      this.node.href = page;
    } else {
      this.node.removeAttribute('href');
    }
  }
}

/** The model's name. The numbers have the word "simulated" once. */
function model(gpu) {
  return gpu.name.replace(/ \(simulated\)$/, '');
}

function details(gpu) {
  const memory = `${gibibytes(gpu.memory_used_bytes)} of ${gibibytes(gpu.memory_total_bytes)} GiB used`;
  return `GPU ${gpu.index}, ${gpu.name}: ${memory}${gpu.problem ? `. ${gpu.problem}` : ''}`;
}
