// Light or dark, before anything is drawn: as chosen on any page of the hub or the service, else as the system is.
// The hub's own pages keep the choice under this name.
const THEME = 'jupyterhub-bs-theme';
const dark = matchMedia('(prefers-color-scheme: dark)');
const showTheme = () => {
  const chosen = localStorage.getItem(THEME);
  const theme = chosen === 'light' || chosen === 'dark' ? chosen : dark.matches ? 'dark' : 'light';
  document.documentElement.dataset.bsTheme = theme;
  document.getElementById('theme')?.setAttribute('aria-pressed', String(theme === 'dark'));
};
showTheme();
dark.addEventListener('change', showTheme);
window.addEventListener('storage', showTheme); // chosen in another tab
document.addEventListener('DOMContentLoaded', () => {
  const button = document.getElementById('theme');
  button.hidden = false;
  button.addEventListener('click', () => {
    localStorage.setItem(THEME, document.documentElement.dataset.bsTheme === 'dark' ? 'light' : 'dark');
    showTheme();
  });
  showTheme();
});
