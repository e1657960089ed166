/* The item in the top bar: each GPU's use, GPU memory, idle time, and the time left. */
import { append, duration, endWords, gibibytes, labelled, say } from './words.js';

const READINGS = 40; // of the small chart, arbitrary: as many as there are pixels to tell apart

export class Meter {
  /** Add the item to the top bar of JupyterLab (#jp-top-panel) or of Notebook 7 (#top-panel). */
  constructor(shellNode) {
    this.node = document.createElement('a');
    this.node.className = 'gpuspawner-meter';
    this.node.target = '_blank';
    this.node.rel = 'noopener';
    this.note = append(this.node, 'span', 'gpuspawner-note');
    this.name = labelled(this.node, 'gpu', 'gpuspawner-name');
    this.gpus = append(this.node, 'span', 'gpuspawner-gpus');
    this.simulated = append(this.node, 'span', 'gpuspawner-simulated');
    this.memory = labelled(this.node, 'memory', 'gpuspawner-memory');
    this.idle = labelled(this.node, 'pause', 'gpuspawner-idle');
    this.kept = labelled(this.node, 'pause', 'gpuspawner-kept');
    this.left = labelled(this.node, 'clock', 'gpuspawner-left');
    this.warned = labelled(this.node, 'alert', 'gpuspawner-warned');
    this.readings = [];
    this.goOn = document.createElement('a');
    this.goOn.className = 'gpuspawner-go-on';
    this.goOn.target = '_blank';
    this.goOn.rel = 'noopener';
    this.goOn.hidden = true;
    this._tell('');
    (shellNode.querySelector('#jp-top-panel, #top-panel') || document.body).append(this.node, this.goOn);
  }

  /** Show the workspace document. */
  show(workspace, page) {
    const { gpus, idle } = workspace;
    this._tell(gpus.length ? '' : 'No GPU');
    show(this.name, gpus.length ? model(gpus[0]) : '');
    this._showGpus(gpus);
    say(this.simulated, workspace.simulated ? 'simulated' : '');
    show(this.memory, memory(gpus));
    const kept = idle?.kept_until ? idle.kept_until - workspace.now : 0;
    show(this.kept, kept > 0 ? `Kept for ${duration(kept)}` : '');
    const counts = idle && idle.state !== 'busy' && idle.idle_seconds > 0 && kept <= 0 && !workspace.warning;
    const needed = counts && idle.idle_seconds < idle.for_seconds ? ` of ${duration(idle.for_seconds)}` : '';
    show(this.idle, counts ? `Idle ${duration(idle.idle_seconds)}${needed}` : '');
    this._describe([workspace.words, ...gpus.map(details), idle ? idle.because : '']);
    this._link(page);
    this._showGoingOn(workspace.going_on, page);
  }

  /** Show a sentence instead of numbers that may be old. */
  showNote(note, page, why = '') {
    this._tell(note);
    this.gpus.replaceChildren();
    this.goOn.hidden = true;
    say(this.simulated, '');
    for (const part of [this.name, this.memory, this.idle, this.kept, this.left, this.warned]) {
      show(part, '');
    }
    this._describe([why]);
    this._link(page);
  }

  /** Show how many seconds are left, null if no end is known, and until which end if there is a warning. */
  showLeft(seconds, warning) {
    const left = seconds === null || warning ? '' : seconds > 0 ? `${duration(seconds)} left` : 'Ends now';
    show(this.left, left);
    show(this.warned, seconds !== null && warning ? endWords(warning, 'Stops', 'Stops', seconds) : '');
  }

  _tell(note) {
    say(this.note, note);
    this.note.hidden = !note;
  }

  /** Link to where the workspace restarts without a GPU, or with one again. That page says what is lost before. */
  _showGoingOn(goingOn, page) {
    this.goOn.hidden = !goingOn || Boolean(goingOn.why) || !page; // an older service does not send it
    if (!this.goOn.hidden) {
      say(this.goOn, goingOn.action === 'with-gpu' ? 'With a GPU…' : 'Without a GPU…');
      this.goOn.title = goingOn.words;
      this.goOn.href = `${page}#go-on`;
    }
  }

  /** One GPU has a small chart of its use, several have one number each. */
  _showGpus(gpus) {
    while (this.gpus.childElementCount > gpus.length) {
      this.gpus.lastElementChild.remove();
    }
    while (this.gpus.childElementCount < gpus.length) {
      const entry = append(this.gpus, 'span', 'gpuspawner-gpu');
      append(entry, 'span', 'gpuspawner-label');
      append(entry, 'span', 'gpuspawner-value');
    }
    gpus.forEach((gpu, position) => {
      const [label, value] = this.gpus.children[position].querySelectorAll('span');
      const named = position > 0 && model(gpu) !== model(gpus[position - 1]) ? `${model(gpu)} ` : '';
      const known = typeof gpu.utilization_percent === 'number';
      say(label, gpus.length > 1 ? `${named}${gpu.index}:` : '');
      say(value, known ? `${Math.round(gpu.utilization_percent)} %` : 'not measured');
    });
    this._draw(gpus.length === 1 ? gpus[0].utilization_percent : undefined);
  }

  /** Draw the use of the last readings. */
  _draw(percent) {
    this.readings = typeof percent === 'number' ? [...this.readings, percent].slice(-READINGS) : [];
    this.chart?.remove();
    this.chart = null;
    if (this.readings.length < 2) {
      return;
    }
    const NAMESPACE = 'http://www.w3.org/2000/svg';
    this.chart = document.createElementNS(NAMESPACE, 'svg');
    this.chart.setAttribute('class', 'gpuspawner-spark');
    this.chart.setAttribute('viewBox', '0 0 100 100');
    this.chart.setAttribute('preserveAspectRatio', 'none');
    this.chart.setAttribute('aria-hidden', 'true');
    const step = 100 / (this.readings.length - 1);
    const line = `M${this.readings.map((one, at) => `${at * step} ${98 - 0.94 * Math.min(100, Math.max(0, one))}`).join('L')}`;
    for (const shape of [`${line}V100H0z`, line]) {
      const path = document.createElementNS(NAMESPACE, 'path');
      path.setAttribute('d', shape);
      this.chart.append(path);
    }
    this.gpus.firstElementChild.prepend(this.chart);
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

/** Set the text of a labelled part. Without a text its icon goes, too. */
function show(part, text) {
  say(part, text);
  part.parentElement.hidden = !text;
}

/** The model's name without "(simulated)", which is shown once, next to the numbers. */
function model(gpu) {
  return gpu.name.replace(/ \(simulated\)$/, '');
}

/** The GPU memory in use, of all GPUs together, "" if it is not known of one of them. */
function memory(gpus) {
  const sum = key => gpus.reduce((total, gpu) => total + (gpu[key] ?? NaN), 0);
  const [used, total] = [sum('memory_used_bytes'), sum('memory_total_bytes')];
  return gpus.length && total > 0 && used >= 0 ? `${Math.round(used / 2 ** 30)} of ${Math.round(total / 2 ** 30)} GiB` : '';
}

function details(gpu) {
  const used = `${gibibytes(gpu.memory_used_bytes)} of ${gibibytes(gpu.memory_total_bytes)} GiB used`;
  return `GPU ${gpu.index}, ${gpu.name}: ${used}${gpu.problem ? `. ${gpu.problem}` : ''}`;
}
