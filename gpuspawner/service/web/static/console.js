document.addEventListener('DOMContentLoaded', () => {
  const tabs = document.querySelector('.gs-tabs'); // on a phone the present one may lie beyond the edge
  const here = tabs?.querySelector('[aria-current]');
  if (here) tabs.scrollLeft = here.offsetLeft - (tabs.clientWidth - here.offsetWidth) / 2;
});

// Takes fresh numbers into the rows of a list without moving any under its reader: a row that is no longer there stays,
// marked; new ones are counted, with a link that shows them.
document.addEventListener('fresh', ({detail: page}) => {
  for (const body of document.querySelectorAll('[data-rows]')) {
    const fresh = new Map([...(page.getElementById(body.id)?.rows ?? [])].map((row) => [row.dataset.key, row]));
    for (const row of body.rows) {
      const now = fresh.get(row.dataset.key);
      fresh.delete(row.dataset.key);
      row.classList.toggle('gs-gone', !now);
      row.title = now ? '' : 'No longer on this page of the list';
      if (now) [...row.cells].forEach((cell, i) => cell.querySelector('input') || patch(cell, now.cells[i]));
    }
    tellNew(body, fresh.size);
  }
});

function tellNew(body, count) {
  const id = `${body.id}-new`;
  let note = document.getElementById(id);
  if (!count) {
    note?.remove();
    return;
  }
  if (!note) {
    note = document.createElement('p');
    note.id = id;
    note.setAttribute('role', 'status');
    body.closest('.gs-scroll').before(note);
  }
  const link = document.createElement('a');
  link.href = location.href;
  link.textContent = 'Show the list as it is now';
  note.replaceChildren(`${count} more ${count === 1 ? 'row belongs' : 'rows belong'} on this page. `, link);
}
