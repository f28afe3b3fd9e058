"use strict";
// Keeps a page current: the server sends the parts that have changed, as HTML that it has escaped.
(() => {
  const address = document.body.dataset.live;
  const status = document.getElementById("connection");
  if (!address || !status || !window.EventSource) return;
  let source = null;
  let retry = 0;

  const say = (text, isBad) => {
    if (status.textContent !== text) status.textContent = text;
    status.className = isBad ? "bad" : "";
  };

  // What the reader has open or stands on stays so.
  const replace = (part, html) => {
    if (part.innerHTML === html) return;
    const selection = window.getSelection();
    if (selection && !selection.isCollapsed && part.contains(selection.anchorNode)) return;
    const open = [...part.querySelectorAll("details")].map((details) => details.open);
    const scrolled = [...part.querySelectorAll(".wide")].map((wide) => wide.scrollLeft);
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const same = (element) => focused && element.tagName === focused.tagName &&
      element.getAttribute("href") === focused.getAttribute("href") &&
      element.getAttribute("aria-label") === focused.getAttribute("aria-label");
    const parsed = new DOMParser().parseFromString(html, "text/html");
    part.replaceChildren(...parsed.body.childNodes);
    part.querySelectorAll("details").forEach((details, index) => { details.open = !!open[index]; });
    part.querySelectorAll(".wide").forEach((wide, index) => { wide.scrollLeft = scrolled[index] || 0; });
    const again = focused && [...part.querySelectorAll("a, summary, [tabindex]")].find(same);
    if (again) again.focus({ preventScroll: true });
  };

  const stop = () => {
    if (source) source.close();
    source = null;
    window.clearTimeout(retry);
  };

  const start = () => {
    stop();
    if (document.hidden) return;
    source = new EventSource(address);
    source.onopen = () => say("Live: this page updates by itself.", false);
    source.onmessage = (message) => {
      const { id, html } = JSON.parse(message.data);
      const part = document.getElementById(id);
      if (part) replace(part, html);
    };
    source.onerror = () => {
      say("Not live: keiro-web does not answer or has too many viewers. Trying again; reload the page if this lasts.", true);
      // Refused: the browser does not try again by itself.
      if (source && source.readyState === EventSource.CLOSED) retry = window.setTimeout(start, 10000);
    };
  };

  // A page that is not seen asks for nothing.
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  window.addEventListener("pagehide", stop);
  window.addEventListener("pageshow", start);
  say("Connecting …", false);
  start();
})();
