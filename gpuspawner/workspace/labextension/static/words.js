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

/** Bytes as GiB with one decimal, "?" where they are unknown. */
export function gibibytes(bytes) {
  return bytes === null || bytes === undefined ? '?' : (bytes / 2 ** 30).toFixed(1);
}
