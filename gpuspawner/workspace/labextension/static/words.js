/* Small helpers: elements, and how times are said. */

/** Append a new element to `parent` and return it. Text is set by textContent alone, never as HTML. */
export function append(parent, tag, className, text = '') {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  parent.append(element);
  return element;
}

/** Set the text only if it differs: an unchanged node keeps its selection, and is not read out again. */
export function say(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

/** Seconds in words, as on every page of ours: "45 s", "9 min 5 s", "25 min", "3 h 12 min", "2 d 4 h". */
export function duration(seconds) {
  const whole = seconds < 600 ? Math.max(0, Math.round(seconds)) : 60 * Math.round(seconds / 60);
  const minutes = Math.floor(whole / 60);
  const hours = Math.floor(minutes / 60);
  if (minutes < 1) {
    return `${whole} s`;
  }
  if (minutes < 10) {
    return whole % 60 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
  }
  if (hours < 1) {
    return `${minutes} min`;
  }
  if (hours < 48) {
    return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  }
  return hours % 24 ? `${Math.floor(hours / 24)} d ${hours % 24} h` : `${hours / 24} d`;
}

/** The time until the end that a warning tells of: "Ends in 25 min", or "Restarts in 25 min" for a new size. */
export function endWords(warning, ends, ending, seconds) {
  const [then, now] = warning?.kind === 'size' ? ['Restarts', 'Restarting'] : [ends, ending];
  return seconds > 0 ? `${then} in ${duration(seconds)}` : `${now} now`;
}

/** Bytes as GiB with one decimal, "?" where they are unknown. */
export function gibibytes(bytes) {
  return bytes === null || bytes === undefined ? '?' : (bytes / 2 ** 30).toFixed(1);
}

const PATHS = { // as in gs_icons.svg
  gpu: 'M3 3.8h10a1.25 1.25 0 0 1 1.25 1.25v4.7A1.25 1.25 0 0 1 13 11H3a1.25 1.25 0 0 1-1.25-1.25v-4.7A1.25 1.25 0 0 1 3 3.8zM7.1 7.4a1.7 1.7 0 1 1-3.4 0 1.7 1.7 0 0 1 3.4 0zM12.3 7.4a1.7 1.7 0 1 1-3.4 0 1.7 1.7 0 0 1 3.4 0zM4 11v2M6.8 11v2',
  memory: 'M3 4.5h10a1 1 0 0 1 1 1V10a1 1 0 0 1-1 1H3a1 1 0 0 1-1-1V5.5a1 1 0 0 1 1-1zM5 7v1.5M8 7v1.5M11 7v1.5M4.5 11v1.8M8 11v1.8M11.5 11v1.8',
  pause: 'M6 4.2v7.6M10 4.2v7.6',
  clock: 'M13.75 8A5.75 5.75 0 1 1 2.25 8a5.75 5.75 0 0 1 11.5 0zM8 4.8V8l2.2 1.4',
  alert: 'M8 2.3 14.2 13H1.8zM8 6.5v3M8 11.2v.1',
  x: 'm4 4 8 8M12 4l-8 8'
};

/** Append an icon. */
export function icon(parent, name) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('class', 'gpuspawner-icon');
  svg.setAttribute('viewBox', '0 0 16 16');
  svg.setAttribute('aria-hidden', 'true');
  const path = document.createElementNS(svg.namespaceURI, 'path');
  path.setAttribute('d', PATHS[name]);
  svg.append(path);
  parent.append(svg);
  return svg;
}

/** Append a span with an icon and a text, and return what holds the text. */
export function labelled(parent, name, className) {
  const node = append(parent, 'span', className);
  icon(node, name);
  return append(node, 'span', 'gpuspawner-words');
}

/** Split a text into its first sentence and the rest. */
export function firstSentence(text) {
  const end = /[.!?] (?=[A-Z“'"])/.exec(text);
  return end ? [text.slice(0, end.index + 1), text.slice(end.index + 2)] : [text, ''];
}
